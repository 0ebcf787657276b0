"""What planish leaves to ONNX Runtime, how it fails, and what surrounds a session."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import onnxruntime
import pytest
from ort_support import close, model, node, normed, options, own_session, random, session

import planish.ort
from planish.library.loaded import library
from planish.ort import registration

LAYER = "LayerNormalization"


def simple(x_shape: Any = ("n", 32), **attributes: Any) -> bytes:
    return model(
        [node(LAYER, ["x", "w"], ["y"], **attributes)],
        {"x": ("float32", x_shape)},
        {"y": "float32"},
        {"w": random(32, seed=1)},
    )


def test_registering_twice_is_registering_once() -> None:
    planish.ort.register()
    planish.ort.register()
    names = [d.ep_name for d in onnxruntime.get_ep_devices()]
    assert names.count(planish.ort.PROVIDER) == 1


def test_by_its_name_among_the_providers() -> None:
    planish.ort.register()
    made = onnxruntime.InferenceSession(
        simple(), options(), providers=[planish.ort.PROVIDER, "CPUExecutionProvider"]
    )
    assert planish.ort.taken(made) == [(LAYER,)]


def test_options_are_those_that_were_given() -> None:
    given = options()
    assert planish.ort.session_options(given) is given
    for _ in range(2):  # and may be given again
        assert planish.ort.taken(session(simple(), given)) == [(LAYER,)]
    with pytest.raises(TypeError, match=r"options must be onnxruntime\.SessionOptions, not dict"):
        planish.ort.session_options({})


def test_without_optimisation_it_is_taken_too() -> None:
    given = options()
    given.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    x = random(3, 32)
    made = session(simple(), given)
    assert planish.ort.taken(made) == [(LAYER,)]
    close(made.run(None, {"x": x})[0], normed(x, [1], 1e-5)[0] * random(32, seed=1))


def test_what_the_optimiser_made_is_taken() -> None:
    """Nodes that another provider has, here by the options' order, are left to it."""
    given = options()
    given.add_provider("CPUExecutionProvider", {})
    assert planish.ort.taken(session(simple(), given)) == []


def test_a_norm_inside_a_branch() -> None:
    from onnx import TensorProto, helper

    def branch(name: str, operator: str) -> Any:
        inner = [
            node("Add", ["x", "x"], [f"{name}s"]),
            node(operator, [f"{name}s", "w"], [name]),
        ]
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph(inner, name, [], [out])

    text = model(
        [
            node(
                "If",
                ["c"],
                ["y"],
                then_branch=branch("a", LAYER),
                else_branch=branch("b", "RMSNormalization"),
            )
        ],
        {"c": ("int64", []), "x": ("float32", [3, 32])},
        {"y": "float32"},
        {"w": random(32, seed=1)},
    )
    from onnx import ModelProto

    proto = ModelProto.FromString(text)
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.BOOL
    x, made = random(3, 32), session(proto.SerializeToString())
    for condition in (True, False):
        (y,) = made.run(None, {"c": numpy.array(condition), "x": x})
        close(y, normed(x + x, [1], 1e-5, not condition)[0] * random(32, seed=1))
    assert sorted(planish.ort.taken(made)) == [("Add", LAYER), ("Add", "RMSNormalization")]


def test_other_stash_types_are_left(capfd: pytest.CaptureFixture[str]) -> None:
    given = options()
    given.log_severity_level = 1
    made = session(simple(stash_type=11), given)
    assert planish.ort.taken(made) == []
    said = capfd.readouterr()
    assert f'planish leaves {LAYER} "" to the runtime: stash_type is not 1' in said.err + said.out


def test_a_weight_that_does_not_fit_is_an_error_of_the_run() -> None:
    text = model(
        [node(LAYER, ["x", "w"], ["y"])],
        {"x": ("float32", ["n", "m"]), "w": ("float32", ["k"])},
        {"y": "float32"},
    )
    made = session(text)
    with pytest.raises(Exception, match="weight cannot be broadcast to x"):
        made.run(None, {"x": random(3, 32), "w": random(31)})
    assert made.run(None, {"x": random(3, 32), "w": random(32)})[0].shape == (3, 32)


def test_channels_that_do_not_divide_are_an_error_of_the_run() -> None:
    text = model(
        [node("GroupNormalization", ["x", "w", "w"], ["y"], num_groups=5)],
        {"x": ("float32", ["n", "c", "h"]), "w": ("float32", ["k"])},
        {"y": "float32"},
    )
    with pytest.raises(Exception, match="12 channels do not divide into 5 groups"):
        session(text).run(None, {"x": random(3, 12, 4), "w": random(12)})


def test_several_sessions_in_threads() -> None:
    x = random(400, 32)
    sessions = [session(simple()), session(simple())]
    wanted = sessions[0].run(None, {"x": x})[0]
    faults: list[str] = []

    def work(made: Any, start: int) -> None:
        for rows in range(start, 400, 7):
            (y,) = made.run(None, {"x": x[:rows]})
            if not (y == wanted[:rows]).all():
                faults.append(f"{rows} rows")

    threads = [threading.Thread(target=work, args=(sessions[i % 2], i + 1)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_the_bits_do_not_depend_on_the_threads(threads: int) -> None:
    x = random(3000, 32)
    given = options()
    given.intra_op_num_threads = threads
    (y,) = session(simple(), given).run(None, {"x": x})
    (alone,) = session(simple()).run(None, {"x": x[1000:1001]})
    assert (y[1000] == alone[0]).all()


def test_run_options_and_bound_outputs() -> None:
    made, x = session(simple()), random(5, 32)
    run_options = onnxruntime.RunOptions()
    run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    (y,) = made.run(["y"], {"x": x}, run_options)
    bound = made.io_binding()
    bound.bind_cpu_input("x", x)
    target = onnxruntime.OrtValue.ortvalue_from_numpy(numpy.zeros_like(x))
    bound.bind_ortvalue_output("y", target)
    made.run_with_iobinding(bound)
    assert (target.numpy() == y).all()
    run_options.terminate = True
    with pytest.raises(Exception, match="terminate"):
        made.run(None, {"x": x}, run_options)


def test_parallel_execution_mode() -> None:
    given = options()
    given.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    given.inter_op_num_threads = 2
    x = random(50, 32)
    nodes = [node(LAYER, ["x", "w"], [f"y{i}"], epsilon=10.0**-i) for i in range(1, 6)]
    outputs = {f"y{i}": "float32" for i in range(1, 6)}
    text = model(nodes, {"x": ("float32", ["n", 32])}, outputs, {"w": random(32, seed=1)})
    for i, y in enumerate(session(text, given).run(None, {"x": x}), 1):
        close(y, normed(x, [1], 10.0**-i)[0] * random(32, seed=1))


# ---- What may be missing -------------------------------------------------------------------------


def test_no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"onnxruntime is not installed: pip install onnxruntime"):
        planish.ort.register()


@pytest.mark.parametrize("version", ["1.23.2", "1.9", "0.5.0"])
def test_an_old_runtime(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    old = SimpleNamespace(__version__=version, register_execution_provider_library=None)
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", old)
    with pytest.raises(ImportError, match=f"onnxruntime is {version}, wanted 1.24 or later"):
        planish.ort.register()


def test_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    elsewhere = SimpleNamespace(path=tmp_path / "libplanish.so")
    monkeypatch.setattr(registration, "library", lambda: elsewhere)
    monkeypatch.setattr(registration, "_devices", lambda runtime: [])
    with pytest.raises(ImportError, match=f"no libplanish_ort.so: looked for {tmp_path}"):
        planish.ort.register()


def test_a_bad_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libplanish_ort.so").write_text("no library")
    elsewhere = SimpleNamespace(path=tmp_path / "libplanish.so")
    monkeypatch.setattr(registration, "library", lambda: elsewhere)
    monkeypatch.setattr(registration, "_devices", lambda runtime: [])
    with pytest.raises(RuntimeError, match=r"libplanish_ort.so was not registered: .*"):
        planish.ort.register()
    assert library().path.with_name("libplanish_ort.so").is_file()


def test_the_library_in_an_older_runtime() -> None:
    """Its own check: such a runtime has no table of the version, but the first one's functions."""
    makes = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p)
    asks = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
    said: list[tuple[int, bytes]] = []

    @makes
    def create_status(code: int, sentence: bytes) -> int:
        said.append((code, sentence))
        return 4096

    table = (ctypes.c_void_p * 102)(ctypes.cast(create_status, ctypes.c_void_p))
    get = asks(lambda version: ctypes.addressof(table) if version < 24 else 0)
    base = (ctypes.c_void_p * 2)(ctypes.cast(get, ctypes.c_void_p))
    create = ctypes.CDLL(str(library().path.with_name("libplanish_ort.so"))).CreateEpFactories
    create.restype = ctypes.c_void_p
    factories, count = (ctypes.c_void_p * 4)(), ctypes.c_size_t(7)
    status = create(b"planish", base, None, factories, ctypes.c_size_t(4), ctypes.byref(count))
    assert status == 4096 and count.value == 0
    assert said == [(9, b"planish wants ONNX Runtime 1.24 or later")]


def test_the_runtime_alone_gives_the_same() -> None:
    x = random(7, 32)
    with_planish, alone = session(simple()), own_session(simple())
    close(with_planish.run(None, {"x": x})[0], alone.run(None, {"x": x})[0].astype("f8"), times=3)


@pytest.mark.parametrize("name", [LAYER, "GroupNormalization"])
@pytest.mark.parametrize("rank", [15, 16, 17])
def test_many_axes(name: str, rank: int) -> None:
    """planish takes 16 axes, of which groups need one; the rest is the runtime's."""
    attributes = {} if name == LAYER else {"num_groups": 2}
    shape = [2, 4, *[1] * (rank - 3), 8]
    size = 8 if name == LAYER else 4
    text = model(
        [node(name, ["x", "w", "b"], ["y"], **attributes)],
        {"x": ("float32", shape)},
        {"y": "float32"},
        {"w": random(size, seed=1), "b": random(size, seed=2)},
    )
    made, x = session(text), random(*shape)
    assert (planish.ort.taken(made) == [(name,)]) == (rank <= (16 if name == LAYER else 15))
    (y,), (wanted,) = made.run(None, {"x": x}), own_session(text).run(None, {"x": x})
    close(y, wanted.astype("f8"), times=3)
