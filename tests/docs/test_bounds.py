"""Lower bounds of dependencies: the table of docs/security.md, pyproject.toml and what is installed agree."""

import ast
import itertools
import re
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest
from documents import ROOT
from packaging.requirements import Requirement
from packaging.version import Version

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

TABLE = dict(
    re.findall(
        r"^\| `([a-z0-9-]+)`(?: \(`\[\w+\]`\))? \| ([0-9.]+) \| ",
        (ROOT / "docs" / "security.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
)


def requirements() -> list[Requirement]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    return [Requirement(text) for text in (*project["dependencies"], *itertools.chain.from_iterable(extras.values()))]


def lowest(requirement: Requirement) -> Version:
    [found] = [Version(one.version) for one in requirement.specifier if one.operator in (">=", "==")]
    return found


@pytest.mark.parametrize("name", sorted(TABLE))
def test_the_table_says_what_is_asked_for(name: str) -> None:
    asked = [lowest(one) for one in requirements() if one.name == name]
    assert asked and set(asked) == {Version(TABLE[name])}
    try:
        assert Version(version(name)) >= Version(TABLE[name])
    except PackageNotFoundError:
        pytest.skip(f"{name} is of an extra that is not installed")


def test_the_table_has_those_that_see_what_others_send() -> None:
    seen = {"starlette", "cryptography", "h11", "protobuf", "grpcio", "transformers", "pyarrow", "aiohttp"}
    assert seen == TABLE.keys()


def test_nothing_of_others_is_unpickled() -> None:
    """Whence torch need not be newer: its own reader of files is never called."""
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] in ("tests", "benchmarks", "build", ".venv", ".venv-proto"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                named = {alias.name for alias in node.names} | {getattr(node, "module", None) or ""}
                assert not named & {"pickle", "dill", "cloudpickle", "shelve"}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load":
                assert ast.unparse(node.func.value) not in ("torch", "torch.export", "torch.jit"), path
