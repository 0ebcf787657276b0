"""planish for ONNX Runtime on the CPU: the norms of unmodified models on planish's kernels.

    import onnxruntime
    import planish.ort

    session = onnxruntime.InferenceSession("model.onnx", planish.ort.session_options())

docs/guide/onnxruntime.md has the whole story.
"""

from __future__ import annotations

from planish.ort.registration import PROVIDER as PROVIDER
from planish.ort.registration import register as register
from planish.ort.registration import session_options as session_options
from planish.ort.registration import taken as taken
