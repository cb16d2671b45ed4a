"""Every test that the documents name exists: a table of promises is worth what stands behind it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import DOCUMENTS, ROOT

NAMED = re.compile(r"(?:(?P<file>[\w/]*\w+\.py)::)?\b(?P<test>test_\w+)\b(?!\.py)")
FILE = re.compile(r"(?<![\w./])(?:tests|benchmarks)/[\w/]+\.py\b")
DEFINED = re.compile(r"^\s*(?:async )?def (test_\w+)|^class (\w+)", re.MULTILINE)


def names_in(path: Path) -> set[str]:
    """Tests, and classes of tests, that a file defines."""
    return {name for pair in DEFINED.findall(path.read_text(encoding="utf-8")) for name in pair if name}


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    return {path.relative_to(ROOT).as_posix(): names_in(path) for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("document", [*DOCUMENTS, ROOT / "CHANGELOG.md"], ids=str)
def test_what_a_document_names_is_there(document: Path, known: dict[str, set[str]]) -> None:
    text = document.read_text(encoding="utf-8")
    gone = [name for name in FILE.findall(text) if not (ROOT / name).is_file()]
    everywhere = {name for names in known.values() for name in names}
    modules = {Path(path).stem for path in known}
    for found in NAMED.finditer(text):
        file, where = found["file"], everywhere | modules
        if file:
            where = {name for path, names in known.items() if f"/{path}".endswith(f"/{file}") for name in names}
        if found["test"] not in where:
            gone.append(found[0])
    assert not gone, f"{document.name} names what is not there: {sorted(set(gone))}"
