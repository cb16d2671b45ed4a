"""The linters of the ecosystems that deploy/ has recipes for: `pip install -e '.[lint-deploy]'`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"


def lint(name: str, *words: str | Path, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run a linter to its end; the test is skipped where it is not installed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    found = shutil.which(name, path=path)
    if found is None:
        pytest.skip(f"{name} is not installed: pip install -e '.[lint-deploy]', or your system's package")
    return subprocess.run([found, *map(str, words)], capture_output=True, text=True, cwd=cwd, timeout=120)
