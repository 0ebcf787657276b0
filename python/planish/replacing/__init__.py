"""Puts planish's modules into a model, and takes them out again.

    model = planish.replace(model)    # norms of torch, Transformers, diffusers, timm, torchvision
    print(planish.replaced(model))    # what was taken, what was left, and why
    planish.restore(model)            # as it was

families.py guesses what a class may compute, forms.py says it and makes it of planish's functions,
probe.py proves it (prober.py compares, on what inputs.py makes; edges.py and state.py see to it
that a class does nothing else), swapped.py changes a module's class, fusion.py moves activations
into norms, and folding.py norms into convolutions; layers.py has what all classes that stand in for
others share, and takes them out again; whole.py undoes what a call did that raises.
rewritten.py gives blocks forwards that call norms together with what stands around them: reading.py
finds the places in the source, stages.py and post_norms.py compute them, places.py proves it,
rewriting.py makes the function. batch_blocks.py does so for batch norms, with the calls of
batch_calls.py; batch_known.py has their table, batch_layers.py those that are none of torch's own.
"""

from __future__ import annotations

import logging
import warnings
from typing import TypeVar

from planish.replacing import (
    batch_blocks,
    families,
    folding,
    fusion,
    layers,
    probe,
    rewritten,
    swapped,
)
from planish.replacing.report import Counter, Entry, Report
from planish.replacing.whole import check_model, whole
from torch import nn

__all__ = ["Entry", "Report", "replace", "replaced", "restore"]

_log = logging.getLogger("planish")

_Module = TypeVar("_Module", bound=nn.Module)


def replace(
    model: _Module, *, activations: bool = False, fuse: bool = False, fold: bool = False
) -> _Module:
    """Makes the norms in ``model`` run on planish, in place, and returns it.

    Taken are torch.nn's LayerNorm, RMSNorm, GroupNorm, InstanceNorm1d, 2d, 3d and BatchNorm1d, 2d,
    3d, frozen batch norms by what they compute, and the norms of Transformers, diffusers, timm and
    torchvision, and any other class of a norm that computes what planish can: by what its forward
    does, not by its name. Such a class is taken after a probe: its forward and planish's, on seeded
    inputs, in all dtypes of input and parameters, agree in results and gradients, bit by bit in
    16-bit types where its order of rounding is one of planish's, and within the bounds of
    docs/guide/reproducibility.md elsewhere; in training, and at the edges of each dtype; and a call
    leaves no trace. What was not proven, other dtypes or numbers of axes, runs the module's own
    forward. A class with other mathematics is left alone, and so is one whose forward or attributes
    raise.

    ``activations=True`` moves an nn.SiLU or nn.ReLU (behind a BatchNorm nn.GELU, nn.ReLU6 and
    nn.Hardswish, too) right behind a GroupNorm or BatchNorm into the norm, in an nn.Sequential,
    where both are attributes of a block that calls one right after the other and the activation
    nowhere else, and in diffusers' ResnetBlock2D; not where either has hooks or is in several
    places. What calls the norm of such a pair by itself then gets the activation, too. Blocks that
    call one ReLU after several BatchNorms get a subclass whose forward calls each together with it.

    ``fuse=True`` also fuses what stands around norms, where a block's forward shows it (read from
    its source, whatever the class): the sum with a residual before a norm, also with LayerScale
    and stochastic depth or a gate on the summand, modulation behind it, the residual that a norm's
    result is added to, norms of queries and keys; a BatchNorm, the residual that its result is
    added to and the activation of the sum; and activations, as ``activations=True`` does.
    The block gets a subclass whose forward is its own with these statements changed, each after a
    probe: results and gradients against the block's own way, with its dtypes. A norm with hooks,
    and whatever was not proven, runs apart.
    Dropout stays torch's module, and draws what it drew.

    ``fold=True`` makes a Conv1d, 2d or 3d and the BatchNorm right behind it one convolution, for
    inference: by the running statistics, with weights that are computed in f64 and rounded once to
    the convolution's dtype, which is by what results differ. The model has to be in eval mode; a
    call in training mode raises RuntimeError until :func:`restore`. The convolution has parameters
    of its own without gradients, and the norm's are not in the state_dict.

    Modules, Parameter objects, buffers, hooks, dtype, device, training flag and state_dict are as
    they were; only classes change, and :func:`restore` changes them back. Modules of other
    libraries stay instances of their classes. A replaced model can be pickled and copied; where it
    is loaded, its classes are looked at again. Subclasses of torch's modules outside of the
    libraries named are left alone: :func:`planish.enable` reaches those.

    What was taken and what was left goes to the logger ``planish`` at level INFO, and
    :func:`replaced` returns it. Warns (UserWarning) if nothing was taken. Raises TypeError for what
    is no torch.nn.Module, or a compiled TorchScript module, and ValueError for ``fold=True`` of a
    model in training mode. Whatever is raised, the model is as it was.

    Example:

    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64))
    >>> model = planish.replace(model)
    >>> model[1]
    LayerNorm((64,), eps=1e-05, elementwise_affine=True, bias=True)
    >>> isinstance(model[1], planish.LayerNorm)
    True
    """
    check_model("replace", model)
    probe.forget()
    with whole(model):
        if fold:
            folding.fold(model)
        for module in list(model.modules()):
            swapped.put(module)
        if activations or fuse:
            fusion.fuse(model)
        if fuse:
            rewritten.fuse(model)
        if activations or fuse:
            batch_blocks.fuse(model, residuals=fuse)
        report = _report(model, fuse)
    _log.info("planish.replace(%s): %s", type(model).__name__, report)
    if not report.taken and not report.folded:
        warnings.warn(
            f"planish.replace: took nothing in {type(model).__name__}: {_summary(report)}",
            stacklevel=2,
        )
    return model


def _summary(report: Report) -> str:
    if not report.left:
        return "it has no norms that are modules"
    return "; ".join(f"{entry.modules} x {entry.name}: {entry.what}" for entry in report.left)


def replaced(model: nn.Module) -> Report:
    """What of ``model`` runs on planish by :func:`replace`, what does not, and why: every norm that
    is a module of its own, by what it computes if not by its name.

    It looks at the model as it is now. Modules of planish that the model was built with are not
    counted. Where something is fused, ``together`` says what, and ``alone`` which norms of blocks
    are not, and why.

    Example:

    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64))
    >>> report = planish.replaced(planish.replace(model))
    >>> print(report)
    1 norms on planish, 0 left alone
      on planish     1 x torch.LayerNorm: planish.LayerNorm
    >>> report.modules_taken, report.modules_left
    (1, 0)
    """
    check_model("replaced", model)
    probe.forget()
    return _report(model, any(rewritten.places_of(one) for one, _ in rewritten.holders(model)))


def _report(model: nn.Module, fuse: bool) -> Report:
    counter = Counter()
    for holder, module in rewritten.holders(model) if fuse else ():
        name = families.name_of(swapped.original_class(holder))
        for place in rewritten.places_of(holder):
            counter.together(name, f"{', '.join(place.norms)}: {place}")
        for norm, why in rewritten.decide(holder, module)[1]:
            counter.alone(name, f"{norm}: {why}")
    for module in model.modules():
        what = swapped.form_of(module)
        name = families.name_of(swapped.original_class(module))
        if what:
            counter.took(name, what)
            continue
        decision = swapped.decide(module)
        if not isinstance(decision, str):
            counter.left(name, "not replaced yet: planish.replace(model) takes it")
        elif decision:
            counter.left(name, decision)
    fused = fusion.count(model) + batch_blocks.count(model)
    return counter.report(fused, folding.count(model))


def restore(model: _Module) -> _Module:
    """Takes back what :func:`replace` did, in place, and returns the model.

    Every module has the class and the forward that it had, and activations are where they were.
    Parameters and what they have learned stay. Classes and hooks that other libraries put on top
    since (torch.nn.utils.parametrize, FSDP2, accelerate) stay, over the original class; raises
    RuntimeError, and restores nothing, where such a class cannot be made over another.

    Example:

    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64))
    >>> type(planish.restore(planish.replace(model))[1])
    <class 'torch.nn.modules.normalization.LayerNorm'>
    """
    check_model("restore", model)
    found = layers.planned(rewritten.everything(model))
    fusion.unfuse(model)
    layers.take(found)
    for norm in folding.unfold(model):
        layers.take(layers.planned(rewritten.everything(norm)))
    return model
