"""ONNX Runtime's CPU kernels, with inputs and output bound to the caller's memory.

Forward only: the package has no gradients. Its threads are told to stop spinning when a run ends,
so that they take no time from the provider measured next.
"""

from __future__ import annotations

import importlib.util
from importlib.metadata import version as package_version
from typing import Any

import numpy as np

import torch

from ..case import Case, Data
from .base import Provider, Run, UnsupportedError, run_of
from .onnx_model import ELEMENT_TYPES, norm_model

NUMPY_TYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "f64": np.float64}


class OnnxRuntime(Provider):
    """LayerNormalization / SimplifiedLayerNormalization of onnxruntime."""

    name = "onnxruntime"
    what = "ONNX Runtime LayerNormalization / SimplifiedLayerNormalization, bound memory"

    def missing(self) -> str | None:
        """Whether the package is there."""
        if importlib.util.find_spec("onnxruntime") is None:
            return "not installed: pip install onnxruntime"
        return None

    def version(self) -> str | None:
        """The package's version."""
        return None if self.missing() else package_version("onnxruntime")

    def prepare(self, case: Case, data: Data) -> Run:
        """Forward in the dtypes that ONNX Runtime has on the CPU."""
        import onnxruntime as ort

        if case.device != "cpu":
            raise UnsupportedError("measured on the CPU only")
        if case.direction != "forward":
            raise UnsupportedError("the onnxruntime package has no gradients")
        options = ort.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 4
        options.add_session_config_entry("session.force_spinning_stop", "1")
        model = norm_model(case.kind, case.rows, case.cols, case.dtype, case.eps)
        try:
            session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises one class per status, with no common base
            raise UnsupportedError(f"ONNX Runtime: {str(error).splitlines()[0]}") from error
        y = data.result
        element = NUMPY_TYPES.get(case.dtype, ELEMENT_TYPES[case.dtype])
        binding = session.io_binding()
        inputs = {"x": data.x, "weight": data.weight}
        if data.bias is not None:
            inputs["bias"] = data.bias
        for name, tensor in inputs.items():
            binding.bind_input(name, "cpu", 0, element, list(tensor.shape), tensor.data_ptr())
        binding.bind_output("y", "cpu", 0, element, list(y.shape), y.data_ptr())

        def run() -> None:
            session.run_with_iobinding(binding)

        def outputs() -> dict[str, torch.Tensor]:
            run()
            return {"y": y}

        return run_of(run, outputs)
