"""apex.contrib.group_norm.group_norm: GroupNorm with SiLU behind it, on planish.group_norm.

The result is laid out as x, channels last or not, and has x's dtype, under autocast too; number of
channels and groups, shape and dtypes of the parameters are free. Apex has kernels for channels last
and the channels, groups and dtypes that the class lists, and uses torch elsewhere; those lists are
here for code that reads them and decide nothing.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, ClassVar

from torch.nn import Parameter, init

import planish
import torch
from planish.apex import _autocast_utils, _custom_ops
from planish.operators.arguments import HALF, check_tensor
from torch import Tensor

__all__ = [
    "GroupNorm",
    "cuda_group_norm_nhwc_one_pass",
    "cuda_group_norm_nhwc_two_pass",
    "cuda_group_norm_v2_nhwc",
    "get_cc_and_sm_count",
    "torch_group_norm",
]


def __getattr__(name: str) -> Any:
    if name in _custom_ops.GROUP_NORMS:  # defined when they are asked for
        return _custom_ops.operator(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def get_cc_and_sm_count(device_index: int) -> tuple[tuple[int, int], int]:
    """Compute capability and number of multiprocessors of a CUDA device."""
    properties = torch.cuda.get_device_properties(device_index)
    return (properties.major, properties.minor), properties.multi_processor_count


def torch_group_norm(
    x: Tensor, g: int, w: Tensor | None, b: Tensor | None, eps: float, act: str = ""
) -> Tensor:
    """torch's operators: x in the dtype of the weight, the result in that of x. As in Apex an
    activation other than "silu" and "swish" is not done."""
    wide = x if w is None else x.to(w.dtype)
    y = torch.nn.functional.group_norm(wide, g, w, b, eps)
    if act in ("silu", "swish"):
        y = torch.nn.functional.silu(y)
    return y if w is None else y.to(x.dtype)


def _group_norm(
    x: Tensor, G: int, weight: Tensor | None, bias: Tensor | None, eps: float, act: str | None
) -> Tensor:
    activation = _custom_ops.activation(act)
    check_tensor("group_norm", "x", x)
    device = x.device.type
    casts = device in _autocast_utils.DEVICES and torch.is_autocast_enabled(device)
    with _autocast_utils.off(device) if casts else contextlib.nullcontext():
        return planish.group_norm(x, G, weight, bias, eps, activation)


def cuda_group_norm_nhwc_one_pass(
    x: Tensor, G: int, weight: Tensor, bias: Tensor, eps: float, act: str | None = None
) -> Tensor:
    """Group norm, and SiLU with ``act`` "silu" or "swish"; the three functions are one here."""
    return _group_norm(x, G, weight, bias, eps, act)


def cuda_group_norm_nhwc_two_pass(
    x: Tensor, G: int, weight: Tensor, bias: Tensor, eps: float, act: str | None = None
) -> Tensor:
    """Group norm, and SiLU with ``act`` "silu" or "swish"; the three functions are one here."""
    return _group_norm(x, G, weight, bias, eps, act)


def cuda_group_norm_v2_nhwc(
    x: Tensor, G: int, weight: Tensor, bias: Tensor, eps: float, act: str | None = None
) -> Tensor:
    """Group norm, and SiLU with ``act`` "silu" or "swish"; the three functions are one here."""
    return _group_norm(x, G, weight, bias, eps, act)


class GroupNorm(torch.nn.Module):
    """apex.contrib.group_norm.GroupNorm: GroupNorm of (N, C, ...), then SiLU with ``act`` "silu" or
    "swish", in the same pass over memory (see :func:`planish.group_norm`).

    Raises ValueError for channels that the groups do not divide, and, unlike Apex, which leaves it
    out, for another activation.

    Example:

    >>> planish.apex.GroupNorm(8, 64, act="silu")(torch.randn(2, 64, 4, 4)).shape
    torch.Size([2, 64, 4, 4])
    """

    SUPPORTED_CHANNELS: ClassVar[frozenset[int]] = frozenset(
        {128, 256, 320, 384, 448, 512, 640, 768, 896, 960, 1024, 1280, 1344, 1536}
        | {1792, 1920, 2048, 2240, 2560, 2688, 3072, 3136, 3584, 4096}
    )
    SUPPORTED_GROUPS: ClassVar[frozenset[int]] = frozenset({16, 32})
    #: dtype of x, dtype of the parameters
    SUPPORTED_DTYPES: ClassVar[frozenset[tuple[torch.dtype, torch.dtype]]] = frozenset(
        (x, w) for x in (torch.float32, *HALF) for w in (torch.float32, *HALF)
    )
    #: height * width, channels
    GN_V2_SUPPORTED_CHANNELS: ClassVar[frozenset[tuple[int, int]]] = frozenset(
        (side * side, channels)
        for side, counts in {
            8: (1280, 2560),
            16: (640, 1280, 1920, 2560),
            32: (320, 640, 960, 1280, 1920),
            64: (320, 640, 960),
        }.items()
        for channels in counts
    )
    GN_V2_SUPPORTED_DTYPES: ClassVar[frozenset[tuple[torch.dtype, torch.dtype]]] = frozenset(
        (half, half) for half in HALF
    )
    #: groups, SiLU or not
    GN_V2_SUPPORTED_GROUPS_SWISH: ClassVar[frozenset[tuple[int, bool]]] = frozenset(
        {(16, True), (32, False)}
    )
    GN_V2_SUPPORTED_LOWER_BOUND_SM_COUNT: ClassVar[dict[tuple[int, int], int]] = {(10, 0): 148}

    if TYPE_CHECKING:
        weight: Any
        bias: Any

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        act: str | None = None,
    ) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(
                f"num_channels must be divisible by num_groups, but {num_channels} is not by "
                f"{num_groups}"
            )
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        self.act = act.lower() if act else act
        _custom_ops.activation(act)
        for name in ("weight", "bias"):
            empty = torch.empty(num_channels, device=device, dtype=dtype) if affine else None
            self.register_parameter(name, None if empty is None else Parameter(empty))
        self.reset_parameters()

    @property
    def sm(self) -> int:
        """Ten times the compute capability of the current CUDA device; 0 without one."""
        if not torch.cuda.is_available():
            return 0
        major, minor = torch.cuda.get_device_capability()
        return 10 * major + minor

    def reset_parameters(self) -> None:
        """Weights of 1 and biases of 0."""
        if self.affine:
            init.ones_(self.weight)
            init.zeros_(self.bias)

    def _check_legality(self, input: Tensor) -> bool:
        """Whether Apex has a kernel for this input; planish has one in any case."""
        return (
            input.is_contiguous(memory_format=torch.channels_last)
            and self.affine
            and (input.dtype, self.weight.dtype) in self.SUPPORTED_DTYPES
            and self.num_groups in self.SUPPORTED_GROUPS
            and self.num_channels in self.SUPPORTED_CHANNELS
        )

    def _check_v2_legality(self, input: Tensor) -> bool:
        """Whether Apex has a kernel of its second kind for this input on its device."""
        if not (input.is_cuda and self.affine):
            return False
        capability, count = get_cc_and_sm_count(input.device.index)
        least = self.GN_V2_SUPPORTED_LOWER_BOUND_SM_COUNT.get(capability)
        pixels = input.shape[2] * input.shape[3]
        return (
            least is not None
            and count >= least
            and (pixels, self.num_channels) in self.GN_V2_SUPPORTED_CHANNELS
            and (self.num_groups, bool(self.act)) in self.GN_V2_SUPPORTED_GROUPS_SWISH
            and (input.dtype, self.weight.dtype) in self.GN_V2_SUPPORTED_DTYPES
        )

    def forward(self, input: Tensor) -> Tensor:
        """The norm of ``input`` (N, C, ...), laid out as it."""
        return _group_norm(input, self.num_groups, self.weight, self.bias, self.eps, self.act)

    def extra_repr(self) -> str:
        act = f", act={self.act}" if self.act else ""
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}{act}"
