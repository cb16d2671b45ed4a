"""Benchmarks are not run here; what they import is there."""

from importlib import import_module
from pathlib import Path

import pytest

NAMES = sorted(path.stem for path in (Path(__file__).parent.parent / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_finds_what_it_imports(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [name])  # one reads its arguments as it is imported
    try:
        import_module(f"farflung.benchmarks.{name}")
    except ModuleNotFoundError as error:
        if error.name != "pyte":  # draws terminals for the docs, and is nobody's dependency
            raise
