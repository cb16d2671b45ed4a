"""Compiled loops are kept on disk, and made anew when a loop in another file, which they have inlined, changes."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("numba")

ONE = """from farflung.compress.cpu.loops.base import jit

@jit
def inner(x):
    return x + {number}
"""
TWO = """from farflung.compress.cpu.loops.base import jit
from loops_one import inner

@jit
def outer(x):
    return 2 * inner(x)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "loops_two.py").write_text(TWO)
    return tmp_path


def loaded(folder: Path, number: int) -> ModuleType:
    """The two files as a new process would see them, with this number in the inner loop."""
    from farflung.compress.cpu.kept import text_of

    (folder / "loops_one.py").write_text(ONE.format(number=number))
    text_of.cache_clear()
    for name in ("loops_one", "loops_two"):
        spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        exec(compile((folder / f"{name}.py").read_text(), str(folder / f"{name}.py"), "exec"), module.__dict__)
    del sys.modules["loops_one"], sys.modules["loops_two"]
    return module


def test_a_loop_is_compiled_anew_when_one_that_it_calls_changes(folder: Path) -> None:
    assert loaded(folder, 1).outer(1) == 4
    kept = loaded(folder, 1)
    assert kept.outer(1) == 4 and sum(kept.outer.stats.cache_hits.values()) == 1
    assert loaded(folder, 20).outer(1) == 42
