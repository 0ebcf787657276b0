"""BatchNorm1d, 2d and 3d with what may stand behind them, and the one whose statistics are those of
several processes."""

from __future__ import annotations

from typing import Any, TypeVar

import torch.nn.functional as F
from torch.nn.modules.batchnorm import _BatchNorm as _TorchBatchNorm

import torch
from planish.functions.batch import long_way
from planish.library import quick, torch_calls
from planish.library.torch_calls import runs_torchs
from planish.modules.norm_modules import held_buffer, held_parameter
from planish.operators import batch, sync_batch
from planish.operators.arguments import check_activation, check_tensor
from planish.operators.ways import Way, leaf, way_of
from torch import Tensor, nn

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm", "synchronized"]


def _is_recomputing() -> bool:
    """Whether a backward is under way on this thread: a forward inside of it computes again what a
    checkpoint threw away."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


class _BatchNorm:
    """What planish's batch norms have beside torch's, before these in the order of classes."""

    #: Class attributes for modules that replace() made of others.
    activation = None
    once = False

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
        activation: str | None = None,
        once: bool = False,
    ) -> None:
        check_activation(type(self).__name__, activation)
        super().__init__(  # type: ignore[call-arg]
            num_features,
            eps,
            momentum,
            affine,
            track_running_stats,
            device=device,
            dtype=dtype,
        )
        if affine and not bias:  # not every torch takes it as an argument
            module: Any = self
            del module.bias
            module.register_parameter("bias", None)
        self.activation, self.once = activation, once

    def forward(self, input: Tensor, addend: Tensor | None = None) -> Tensor:
        """The norm of ``input`` (N, C, ...), plus ``addend`` of its shape, with the activation,
        laid out as ``input``. What planish does not run, torch does, its errors included.
        """
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            y = self._scripted(input, addend)
        else:
            y = _BatchNorm._forward(self, input, addend)
        return y

    def _scripted(self, input: Tensor, addend: Tensor | None) -> Tensor:
        """In torch's own functions, for TorchScript."""
        self._check_input_dim(input)  # type: ignore[attr-defined]
        factor = 0.0 if self.momentum is None else self.momentum  # type: ignore[attr-defined]
        batches = self.num_batches_tracked  # type: ignore[attr-defined]
        counts = self.training and self.track_running_stats  # type: ignore[attr-defined]
        if counts and batches is not None:
            batches.add_(1)
            if self.momentum is None:  # type: ignore[attr-defined]
                factor = 1.0 / float(batches)
        mean, var = self.running_mean, self.running_var  # type: ignore[attr-defined]
        by_batch = self.training or (mean is None and var is None)  # type: ignore[attr-defined]
        kept = not self.training or self.track_running_stats  # type: ignore[attr-defined]
        y = F.batch_norm(
            input,
            mean if kept else None,
            var if kept else None,
            self.weight,  # type: ignore[attr-defined]
            self.bias,  # type: ignore[attr-defined]
            by_batch,
            factor,
            self.eps,  # type: ignore[attr-defined]
        )
        if addend is not None:
            y = y + addend
        if self.activation is not None:
            if self.activation == "relu":
                y = F.relu(y)
            elif self.activation == "silu":
                y = F.silu(y)
            elif self.activation == "gelu":
                y = F.gelu(y)
            elif self.activation == "relu6":
                y = F.relu6(y)
            elif self.activation == "hardswish":
                y = F.hardswish(y)
            else:
                y = F.gelu(y, approximate="tanh")
        return y

    def _count(self) -> float:
        """Counts the batch; the share that it has in the running statistics."""
        module: Any = self
        momentum: float | None = module.momentum
        if module.training and module.track_running_stats:
            batches = module._buffers.get("num_batches_tracked")
            if batches is not None:
                batches.add_(1)
                if momentum is None:
                    return 1.0 / float(batches)
        return 0.0 if momentum is None else momentum

    def _statistics(self) -> tuple[bool, Tensor | None, Tensor | None]:
        """Whether the batch's own are taken, and the running ones of the call."""
        module: Any = self
        mean, var = held_buffer(module, "running_mean"), held_buffer(module, "running_var")
        if not module.training:
            return mean is None and var is None, mean, var
        return (True, mean, var) if module.track_running_stats else (True, None, None)

    def _at_once(
        self, input: Tensor, addend: Tensor | None, activation: str | None
    ) -> Tensor | None:
        """The result of a call that is known; None, with nothing done, of any other."""
        module: Any = self
        if type(input) is not Tensor or self.once:
            return None
        self._check_input_dim(input)  # type: ignore[attr-defined]
        by_batch, mean, var = self._statistics()
        weight, bias = held_parameter(module, "weight"), held_parameter(module, "bias")
        tensors = input, addend, weight, bias, mean, var
        known, _ = batch.find(by_batch, module.eps, activation, tensors)
        return None if known is None else batch.run(known, self._count(), tensors)

    def _forward(
        self, input: Tensor, addend: Tensor | None, activation: str | None = None
    ) -> Tensor:
        """``activation``: one that stands in for the module's own, which is None."""
        module: Any = self
        activation = activation or self.activation
        if activation is not None or addend is not None:
            y = self._at_once(input, addend, activation)
            if y is not None:
                return y
        weight, bias = held_parameter(module, "weight"), held_parameter(module, "bias")
        strange = type(input) is not Tensor or not (addend is None or type(addend) is Tensor)
        if strange and way_of(input, weight, bias, addend) is Way.NODE:
            return leaf(module, input) if addend is None else leaf(module, input, addend)
        if not isinstance(input, Tensor):
            check_tensor(type(self).__name__, "input", input)
        self._check_input_dim(input)  # type: ignore[attr-defined]
        by_batch, mean, var = self._statistics()
        if module.training and self.once and _is_recomputing():
            mean, var, momentum = None, None, 0.0
        else:
            momentum = self._count()
        return self._run(input, mean, var, weight, bias, by_batch, momentum, addend, activation)

    def _run(
        self,
        input: Tensor,
        mean: Tensor | None,
        var: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        by_batch: bool,
        momentum: float,
        addend: Tensor | None,
        activation: str | None,
    ) -> Tensor:
        eps: float = self.eps  # type: ignore[attr-defined]
        given = input, mean, var, weight, bias, by_batch, momentum, eps
        if activation is None and addend is None:
            numbers = by_batch, momentum, eps
            y = torch_calls.batch_norm(input, weight, bias, mean, var, *numbers)
            if y is not None:
                return y
            if runs_torchs(quick.BATCH_NORM, input, weight, bias):
                return F.batch_norm(*given)
        return long_way(*given, activation, addend)

    def extra_repr(self) -> str:
        text: str = super().extra_repr()  # type: ignore[misc]
        text += f", activation={self.activation!r}" if self.activation else ""
        return text + (", once=True" if self.once else "")


class BatchNorm1d(_BatchNorm, nn.BatchNorm1d):
    """torch.nn.BatchNorm1d on planish, whether planish is enabled or not, with what follows it.

        y = f((x - mean) / sqrt(var + eps) * weight + bias + addend)

    of x (N, C) or (N, C, L). Arguments, parameters, buffers, state_dict and errors are torch's; the
    rest is :class:`BatchNorm2d`'s.

    Example:

    >>> planish.BatchNorm1d(8)(torch.randn(4, 8, 16)).shape
    torch.Size([4, 8, 16])
    """


class BatchNorm2d(_BatchNorm, nn.BatchNorm2d):
    """torch.nn.BatchNorm2d on planish, whether planish is enabled or not, with what follows it.

        y = f((x - mean) / sqrt(var + eps) * weight + bias + addend)

    of x (N, C, H, W), with mean and (biased) variance over all axes but the channels; in eval the
    running ones. Arguments, parameters, buffers, state_dict and errors are torch's.

    ``activation`` is f: None, ``"relu"``, ``"silu"``, ``"gelu"``, ``"gelu_tanh"``, ``"relu6"`` or
    ``"hardswish"``; ``addend`` is the second argument of the call: the residual of a block. Both
    are part of the norm's own passes over memory.

    ``once=True``: a forward that a checkpoint computes again, inside of a backward, leaves the
    running statistics as they are. By default it brings them up to date a second time, as torch
    does.

    Example:

    >>> norm = planish.BatchNorm2d(8, activation="relu")
    >>> x = torch.randn(2, 8, 4, 4)
    >>> norm(x, addend=x).shape
    torch.Size([2, 8, 4, 4])
    >>> norm.load_state_dict(torch.nn.BatchNorm2d(8).state_dict())
    <All keys matched successfully>
    """


class BatchNorm3d(_BatchNorm, nn.BatchNorm3d):
    """torch.nn.BatchNorm3d on planish, whether planish is enabled or not, with what follows it.

        y = f((x - mean) / sqrt(var + eps) * weight + bias + addend)

    of x (N, C, D, H, W). Arguments, parameters, buffers, state_dict and errors are torch's; the
    rest is :class:`BatchNorm2d`'s.

    Example:

    >>> planish.BatchNorm3d(8)(torch.randn(2, 8, 2, 4, 4)).shape
    torch.Size([2, 8, 2, 4, 4])
    """


class SyncBatchNorm(_BatchNorm, _TorchBatchNorm):
    """What torch.nn.SyncBatchNorm is, on planish: in training mean and variance are those of the
    batches of all processes of ``process_group`` (None: of all), also where these differ in size or
    one has none. It runs on the CPU, too, where torch's refuses to, and is no subclass of that, for
    which DistributedDataParallel refuses CPUs.

        y = f((x - mean) / sqrt(var + eps) * weight + bias + addend)

    of x (N, C, ...). Each process sends its number of values, mean and sum of squares in f64, and
    all merge them in the order of ranks, so that all have the same bits, as exact as one process
    would have them. Arguments, parameters, buffers and state_dict are torch's; ``activation``,
    ``addend`` and ``once`` are :class:`BatchNorm2d`'s. Derivatives are of first order. The result
    is laid out as x.

    Without processes, or of one, it is a batch norm.

    Example:

    >>> planish.SyncBatchNorm(8)(torch.randn(2, 8, 4, 4)).shape
    torch.Size([2, 8, 4, 4])
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: Any = None,
        **more: Any,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, **more
        )
        self.process_group = process_group

    def _alone(self) -> bool:
        """Whether no other process is asked, whatever the group."""
        return False

    def _at_once(
        self, input: Tensor, addend: Tensor | None, activation: str | None
    ) -> Tensor | None:
        """Other processes may be asked."""
        return None

    def _check_input_dim(self, input: Tensor) -> None:
        """As torch's."""
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def _run(
        self,
        input: Tensor,
        mean: Tensor | None,
        var: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        by_batch: bool,
        momentum: float,
        addend: Tensor | None,
        activation: str | None,
    ) -> Tensor:
        if input.shape[1] == 0:
            raise ValueError("SyncBatchNorm number of input channels should be non-zero")
        merges = by_batch and self.training and not self._alone()
        group = sync_batch.group_of(self.process_group) if merges else None
        if group is None:
            return super()._run(
                input, mean, var, weight, bias, by_batch, momentum, addend, activation
            )
        y: Tensor = sync_batch.batch_norm(
            input, mean, var, weight, bias, momentum, self.eps, activation, addend, group
        )
        return y

    @classmethod
    def convert_sync_batchnorm(cls, module: nn.Module, process_group: Any = None) -> nn.Module:
        """Converts the batch norms of a model, torch's and planish's, to :class:`SyncBatchNorm`
        with the same parameters, buffers and activation, as torch's method of this name does.
        Returns the model, or what became of it if it is a batch norm itself.

        Raises TypeError for a subclass of BatchNorm with a forward of its own, of which something
        would be lost.
        """
        made = module
        if isinstance(module, _TorchBatchNorm) and not isinstance(module, SyncBatchNorm):
            made = synchronized(cls, module, process_group)
        for name, child in module.named_children():
            made.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return made


_Sync = TypeVar("_Sync", bound=SyncBatchNorm)


def synchronized(cls: type[_Sync], module: Any, process_group: Any) -> _Sync:
    """A norm of this class with the parameters, buffers and activation of another batch norm."""
    known = (_TorchBatchNorm.forward, nn.SyncBatchNorm.forward, _BatchNorm.forward)
    if type(module).forward not in known:
        raise TypeError(
            f"convert_sync_batchnorm: {type(module).__qualname__} has a forward of its own, of "
            "which a SyncBatchNorm knows nothing; planish.replace() the model first"
        )
    made = cls(
        module.num_features,
        module.eps,
        module.momentum,
        module.affine,
        module.track_running_stats,
        process_group,
    )
    made.activation = getattr(module, "activation", None)
    made.once = getattr(module, "once", False)
    if module.affine:
        made.weight, made.bias = module.weight, module.bias
    made.running_mean, made.running_var = module.running_mean, module.running_var
    made.num_batches_tracked = module.num_batches_tracked
    made.training = module.training
    if hasattr(module, "qconfig"):
        made.qconfig = module.qconfig
    return made
