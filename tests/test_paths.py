"""The paths in docs/architecture.md can be followed by jumping to definitions: every function is there, and is called
by one that stands above it, unless the first column says what it comes by."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROW = re.compile(r"^\| ([^|]*?) ?\| `([\w.]+)` \| `([\w/]+\.py)` \| ([^|]*)\|$", re.MULTILINE)


class Row(NamedTuple):
    by: str
    function: str
    file: str
    what: str


def paths() -> dict[str, list[Row]]:
    """The tables of functions, by the heading above each."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    sections = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    titles = zip(sections[1::2], sections[2::2], strict=True)
    found = {title: [Row(*row) for row in ROW.findall(body)] for title, body in titles}
    return {title: rows for title, rows in found.items() if rows}


PATHS = paths()


def source_of(row: Row) -> str:
    """The code of the function of a row; fails where there is none."""
    text = (ROOT / row.file).read_text(encoding="utf-8")
    node: ast.AST = ast.parse(text)
    for name in row.function.split("."):
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        named = [one for one in ast.iter_child_nodes(node) if isinstance(one, kinds) and one.name == name]
        assert named, f"{row.file} has no {row.function}"
        node = named[0]
    return ast.get_source_segment(text, node) or ""


def test_there_are_three_paths() -> None:
    assert list(PATHS) == ["The path of one sample", "The path of one round", "The way of any message"]
    assert all(len(rows) > 10 for rows in PATHS.values())


@pytest.mark.parametrize("path", PATHS)
def test_every_function_is_called_by_one_above_it(path: str) -> None:
    above = ""
    for row in PATHS[path]:
        code, name = source_of(row), row.function.rpartition(".")[2]
        if above and not row.by:
            assert re.search(rf"\b{name}\(", above), f"nothing above calls {row.function}"
        above += code


@pytest.mark.parametrize("path", PATHS)
def test_an_effect_that_is_named_is_one(path: str) -> None:
    messages = (ROOT / "node" / "rounds" / "protocol" / "messages.py").read_text(encoding="utf-8")
    for effect in re.findall(r"effect `(\w+)`", " ".join(row.by for row in PATHS[path])):
        assert f"class {effect}:" in messages
