"""The repository root is the package; what setuptools is told must match the folders that are there."""

from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
OUTSIDE = {"tests", "benchmarks", "docs", "build"}


def test_every_package_folder_is_installed():
    found = {"farflung"}
    for init in ROOT.glob("[a-z]*/**/__init__.py"):
        parts = init.parent.relative_to(ROOT).parts
        if parts[0] not in OUTSIDE:
            found.add(".".join(("farflung", *parts)))
    assert found == set(SETUP["packages"])


def test_every_data_file_that_the_code_reads_is_installed():
    for package, patterns in SETUP["package-data"].items():
        folder = ROOT.joinpath(*package.split(".")[1:])
        for pattern in patterns:
            assert list(folder.glob(pattern)), f"{package}: nothing matches {pattern}"
