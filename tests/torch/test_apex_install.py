"""planish.apex.install(): who answers for the name apex, and how it is given back."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest


def run(code: str, *folders: Path) -> str:
    """What a fresh Python prints, with these folders before its own."""
    path = [*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", "import planish.apex, sys\n" + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        file = folder / (name.replace("__", "/").replace("/init", "/__init__") + ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """An apex with normalization and without its extension modules."""
    texts = {"apex__init": "name = 'real'\n", "apex__normalization__init": "name = 'real'\n"}
    return write(tmp_path, **texts, apex__optimizers="name = 'real'\n")


@pytest.fixture
def unrelated(tmp_path: Path) -> Path:
    return write(tmp_path, apex__init="name = 'unrelated'\n", apex__lib="name = 'unrelated'\n")


NAMES = """
    apex apex.normalization apex.normalization.fused_layer_norm apex._autocast_utils apex.contrib
    apex.contrib.layer_norm apex.contrib.layer_norm.layer_norm apex.contrib.group_norm
    apex.contrib.group_norm.group_norm apex.contrib.groupbn apex.contrib.groupbn.batch_norm
    apex.contrib.cudnn_gbn apex.contrib.cudnn_gbn.batch_norm apex.parallel
    fused_layer_norm_cuda fast_layer_norm
"""


def test_a_name_is_missing_or_stays_behind() -> None:
    run(f"""
        import importlib, importlib.util
        assert importlib.util.find_spec("apex") is None and not planish.apex.installed()
        assert planish.apex.install() is True and planish.apex.installed()
        before = list(sys.meta_path)
        assert planish.apex.install() is True and sys.meta_path == before
        spec = importlib.util.find_spec("apex")
        assert spec.name == "apex" and spec.submodule_search_locations == []
        import apex
        assert importlib.util.find_spec("apex") is apex.__spec__
        assert "torch" not in sys.modules  # nor is it by looking for apex
        for name in {NAMES.split()}:
            module = importlib.import_module(name)
            assert module.__name__ == module.__spec__.name == name, name
            assert importlib.util.find_spec(name) is module.__spec__
            is_package = module.__spec__.submodule_search_locations is not None
            assert hasattr(module, "__path__") is is_package
        from apex.normalization import FusedLayerNorm, FusedRMSNorm, MixedFusedLayerNorm
        from apex.contrib.layer_norm.layer_norm import FastLayerNormFN, _fast_layer_norm
        from apex.contrib.group_norm.group_norm import cuda_group_norm_nhwc_one_pass, GroupNorm
        from apex.normalization.fused_layer_norm import fused_layer_norm_affine_fwd, manual_rms_norm
        from apex._autocast_utils import _cast_if_autocast_enabled
        import torch, fused_layer_norm_cuda, fast_layer_norm
        assert FusedLayerNorm is planish.apex.FusedLayerNorm
        assert apex.contrib.group_norm.GroupNorm is planish.apex.GroupNorm
        assert apex.normalization.__all__ == planish.apex.normalization.__all__
        assert torch.ops.apex.group_norm_nhwc_bprop and torch.ops.apex.fused_rms_norm_fwd
        planish.apex.uninstall()
        assert not planish.apex.installed() and importlib.util.find_spec("apex") is None
        assert not any(name in sys.modules for name in {NAMES.split()})
        assert FusedLayerNorm(8)(torch.ones(2, 8)).shape == (2, 8)
        planish.apex.uninstall()
    """)


def test_import_apex_alone_lacks_normalization() -> None:
    run("""
        planish.apex.install()
        import apex
        assert apex.normalization.FusedLayerNorm is planish.apex.FusedLayerNorm
        assert apex.normalization.fused_layer_norm.FusedRMSNorm is planish.apex.FusedRMSNorm
    """)


def test_another_import_of_apex_gives_no_reason() -> None:
    run("""
        planish.apex.install()
        import apex
        for statement in (
            "import apex.amp",
            "from apex import amp",
            "from apex.optimizers import FusedAdam",
            "import apex.contrib.xentropy",
            "from apex.contrib import multihead_attn",
        ):
            try:
                exec(statement)
            except ImportError as error:
                assert "this apex is planish's" in str(error), statement
                assert "cudnn_gbn and group_norm alone" in str(error)
            else:
                raise AssertionError(statement)
        assert not hasattr(apex, "amp")
        try:
            apex.amp
        except AttributeError as error:
            assert "this apex is planish's" in str(error)
    """)


def test_a_real_apex_is_shadowed(real: Path) -> None:
    run(
        """
        assert planish.apex.install() is False and not planish.apex.installed()
        import apex.normalization, apex.optimizers
        assert apex.name == apex.normalization.name == "real"
        import fused_layer_norm_cuda  # which it lacks
        assert fused_layer_norm_cuda.rms_backward_affine
        try:
            import apex.contrib
        except ModuleNotFoundError as error:
            assert "planish" not in str(error) and error.name == "apex.contrib"
        else:
            raise AssertionError
        planish.apex.uninstall()
        assert apex is sys.modules["apex"] and "fused_layer_norm_cuda" not in sys.modules
        """,
        real,
    )


def test_shadow_does_not_shadow_or_does_for_good(real: Path) -> None:
    run(
        """
        import apex.normalization
        kept = apex, apex.normalization
        assert planish.apex.install() is False
        assert planish.apex.install(shadow=True) is True and planish.apex.installed()
        import apex.normalization, apex.contrib.group_norm
        assert apex.normalization.FusedLayerNorm is planish.apex.FusedLayerNorm
        try:
            import apex.optimizers
        except ImportError as error:
            assert "this apex is planish's" in str(error)
        else:
            raise AssertionError
        planish.apex.uninstall()
        import apex.normalization
        assert (apex, apex.normalization) == kept
        assert "apex.contrib.group_norm" not in sys.modules
        import apex.optimizers
        """,
        real,
    )


def test_the_other_package_of_that_name_is_in_the_way(unrelated: Path) -> None:
    said = run(
        """
        assert planish.apex.install() is True and planish.apex.installed()
        from apex.normalization import FusedRMSNorm
        planish.apex.uninstall()
        import apex.lib
        assert apex.lib.name == "unrelated"
        """,
        unrelated,
    )
    assert "planish's apex stands in front of" in said and str(unrelated) in said


def test_the_other_package_is_taken_from_under_a_program(unrelated: Path) -> None:
    run(
        """
        import apex.lib
        assert planish.apex.install() is False
        assert sys.modules["apex"] is apex
        assert planish.apex.install(shadow=True) is True
        import apex.normalization
        planish.apex.uninstall()
        import apex
        assert apex.name == "unrelated"
        """,
        unrelated,
    )


def test_a_folder_called_apex_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "apex" / "docs").mkdir(parents=True)
    run(
        """
        assert planish.apex.install() is True
        from apex.normalization import FusedLayerNorm
        """,
        tmp_path,
    )
