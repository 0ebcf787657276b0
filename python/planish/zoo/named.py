"""A model by what a user calls it: a name of the zoo, of timm, of Transformers, or a function."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from planish import zoo
from planish.commands.command_lines import UsageError
from planish.zoo import entry
from torch import nn

__all__ = ["UnknownModel", "of_function", "resolve"]

#: What a configuration of Transformers is cut down to: norms are the same in every layer.
_LAYERS, _VOCABULARY = 2, 1000
_LAYER_NAMES = (
    *("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers"),
    *("decoder_layers", "num_decoder_layers"),
)


class UnknownModel(UsageError):
    """There is no model of this name."""


def of_function(name: str) -> zoo.Built:
    """What ``module:function`` returns: a model, and the arguments of its forward as a dict, a
    tuple or a tensor."""
    module_name, _, function_name = name.partition(":")
    sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UnknownModel(f"{name}: there is no module {error.name!r} to import") from error
    finally:
        sys.path.remove("")
    function: Callable[[], Any] | None = getattr(module, function_name, None)
    if function is None:
        raise UnknownModel(f"{name}: the module {module_name} has no function {function_name!r}")
    made = function()
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], nn.Module):
        raise UnknownModel(
            f"{name} returned {type(made).__name__}; wanted a pair of a torch.nn.Module and the "
            "arguments of its forward"
        )
    model, given = made
    if isinstance(given, dict):
        return model, given
    return _Positional(model), {"args": given if isinstance(given, tuple) else (given,)}


class _Positional(nn.Module):
    """Hands on arguments that have no names."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, args: tuple[Any, ...]) -> Any:
        return self.model(*args)


def _timm(name: str) -> zoo.Built | None:
    if zoo.missing_packages(("timm",)):
        return None
    import timm

    name = name.removeprefix("timm/")
    if not timm.is_model(name):
        return None
    model = timm.create_model(name, pretrained=False)
    shape = model.default_cfg.get("input_size", (3, 224, 224))
    return model, {"x": torch.randn(1, *shape)}


def _cut(config: Any) -> None:
    for name in _LAYER_NAMES:
        value = getattr(config, name, None)
        if isinstance(value, int) and value > _LAYERS:
            setattr(config, name, _LAYERS)
    if isinstance(getattr(config, "vocab_size", None), int):
        config.vocab_size = min(config.vocab_size, _VOCABULARY)
    types = getattr(config, "layer_types", None)
    if isinstance(types, list):
        config.layer_types = types[: _LAYERS - 1] + types[-1:]
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value >= _VOCABULARY:
            setattr(config, name, 0)
    for part in getattr(config, "sub_configs", None) or {}:
        inner = getattr(config, part, None)
        if inner is not None:
            _cut(inner)


def _transformers(name: str) -> zoo.Built | None:
    if zoo.missing_packages(("transformers",)):
        return None
    import transformers

    if name not in transformers.CONFIG_MAPPING:
        return None
    transformers.logging.set_verbosity_error()
    config = transformers.AutoConfig.for_model(name)
    _cut(config)
    model = transformers.AutoModel.from_config(config)
    inputs: dict[str, Any] = {}
    if model.main_input_name == "pixel_values":
        size = getattr(config, "image_size", 224)
        size = size if isinstance(size, int) else size[0]
        inputs["pixel_values"] = entry.pixels(size, 1)
    elif model.main_input_name == "input_ids":
        inputs["input_ids"] = entry.tokens(1, 32)
    else:
        raise UnknownModel(
            f"{name} takes {model.main_input_name}, and planish makes no such input: pass "
            "module:function"
        )
    if getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = entry.tokens(1, 16)
    return model, inputs


def resolve(name: str, dtype: torch.dtype = torch.float32) -> Callable[[], zoo.Built]:
    """A function that builds the model, in eval, with these dtypes; the same every time. Raises
    UnknownModel for a name that nothing has."""
    zoo.prepare()
    known = zoo.entries()
    if name in known:
        missing = zoo.missing_packages(known[name].packages)
        if missing:
            raise UnknownModel(f"{name} needs {', '.join(missing)}, not installed here")
        return lambda: zoo.build(known[name], dtype)

    def make() -> zoo.Built:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            built = of_function(name) if ":" in name else _timm(name) or _transformers(name)
        if built is None:
            raise UnknownModel(
                f"no model {name!r}: neither of planish's own ({', '.join(sorted(known)[:4])} and "
                f"{len(known) - 4} more), nor of timm, nor a model type of Transformers, nor "
                "module:function"
            )
        model, inputs = built
        if ":" not in name or dtype != torch.float32:
            model = model.to(dtype)
            inputs = zoo.mapped(inputs, lambda t: t.to(dtype) if t.is_floating_point() else t)
        return (model if ":" in name else model.eval()), inputs

    return make
