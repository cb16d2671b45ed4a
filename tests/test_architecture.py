"""The rooms of docs/architecture.md are what the imports say, and no files import each other in a circle."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("api", "cli", "compress", "coordinator", "deploy", "job", "node", "proto", "scheduler", "testing")
FILES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))] + [ROOT / "__main__.py"]
MODULES = {path.relative_to(ROOT).with_suffix("").parts for path in FILES}


def imports(path: Path) -> Iterator[tuple[str, ...]]:
    """The modules of this package that a file imports, also in functions and for type checkers alone."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1] + tuple(
                (node.module or "").split(".") if node.module else ()
            )
            for alias in node.names:
                found = [one for one in ((*base, alias.name), base, (*base, "__init__")) if one in MODULES]
                yield from found[:1]


@cache
def graph() -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    """Module -> the modules that it imports. Every worker of pytest-xdist imports this file, and one needs it."""
    return {path.relative_to(ROOT).with_suffix("").parts: set(imports(path)) for path in FILES}


def circles(edges: dict[tuple[str, ...], set[tuple[str, ...]]]) -> list[list[str]]:
    """Groups of modules each of which reaches all others (Tarjan 1972)."""
    number: dict[tuple[str, ...], int] = {}
    low: dict[tuple[str, ...], int] = {}
    stack: list[tuple[str, ...]] = []
    found: list[list[str]] = []

    def visit(module: tuple[str, ...]) -> None:
        number[module] = low[module] = len(number)
        stack.append(module)
        for other in edges.get(module, set()):
            if other not in number:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], number[other])
        if low[module] == number[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                found.append(sorted("/".join(one) for one in group))

    for module in edges:
        if module not in number:
            visit(module)
    return found


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circles(graph()) == []


def test_a_circle_would_be_found() -> None:
    a, b, c = ("a",), ("b",), ("c",)
    assert circles({a: {b}, b: {c}, c: {b}}) == [["b", "c"]]


def table() -> dict[str, set[str]]:
    """Room -> the rooms that it may import, as docs/architecture.md says."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)/` \| .* \| (.*) \|$", text, re.MULTILINE)
    return {room: set(re.findall(r"\w+", allowed)) & set(ROOMS) for room, allowed in rows}


def test_the_table_has_every_room() -> None:
    assert set(table()) == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_what_the_table_says(room: str) -> None:
    used = {other[0] for module, others in graph().items() if module[0] == room for other in others} - {room}
    assert used == table()[room], "the table in docs/architecture.md and the imports differ"


def test_the_front_door_lists_the_commands_and_each_is_a_file_of_its_own() -> None:
    tree = ast.parse((ROOT / "__main__.py").read_text(encoding="utf-8"))
    here = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert here == {"front_door", "wan", "main"}  # the words of `wan` are read by the emulator
    files = {one for one in MODULES if one[:2] == ("cli", "commands") and one[-1] not in ("__init__", "words")}
    assert files == {one for one in graph()[("__main__",)] if one[:2] == ("cli", "commands")}


WIDE = {"compress": 22, "deploy": 1, "scheduler": 21}
"""Functions by room that still take more than six values by their place: these numbers may only become smaller."""


def wide_functions(source: str) -> list[str]:
    """The functions that take more than six values by their place, ``self`` apart. Compiled kernels (``@jit``) may:
    what compiles them knows no others."""
    wide = []
    for kind in ast.walk(ast.parse(source)):
        for made in ast.iter_child_nodes(kind):
            if not isinstance(made, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if any(ast.unparse(one).endswith("jit") for one in made.decorator_list):
                continue
            names = [one.arg for one in made.args.posonlyargs + made.args.args]
            if len(names) - (isinstance(kind, ast.ClassDef) and names[:1] in (["self"], ["cls"])) > 6:
                wide.append(made.name)
    return wide


@pytest.mark.parametrize("room", ROOMS)
def test_no_function_takes_more_than_six_values_by_their_place(room: str) -> None:
    wide = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / room).rglob("*.py"))
        if "_pb2" not in path.name  # generated
        for name in wide_functions(path.read_text(encoding="utf-8"))
    ]
    assert len(wide) <= WIDE.get(room, 0), f"let callers name what comes after the sixth: {wide}"


def test_a_wide_function_would_be_found() -> None:
    method = "class A:\n def __init__(self, a, b, c, d, e, f): ...\n def m(self, a, b, c, d, e, f, g): ..."
    assert wide_functions(method) == ["m"]
    assert wide_functions("@jit\ndef k(a, b, c, d, e, f, g): ...\ndef n(a, b, c, d, e, f, *, g): ...") == []


def test_the_tree_has_a_line_for_each_folder() -> None:
    text = (ROOT / "docs" / "tree.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| `([\w/]+)/` \| \S.* \|$", text, re.MULTILINE)
    inits = [path.parent for room in (*ROOMS, "examples") for path in (ROOT / room).rglob("__init__.py")]
    assert lines == sorted(path.relative_to(ROOT).as_posix() for path in inits), "docs/tree.md: a line for each folder"


@pytest.mark.parametrize("room", ["cli", "coordinator", "job"])
def test_no_folder_holds_more_than_a_dozen_files(room: str) -> None:
    folders = [(ROOT / room), *(path for path in (ROOT / room).rglob("*") if path.is_dir())]
    full = {str(one.relative_to(ROOT)): count for one in folders if (count := len(list(one.glob("*.py")))) > 13}
    assert full == {}, "a room of so many files is two rooms"
