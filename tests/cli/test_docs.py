"""The documents say what the code does: job keys, commands, links between files."""

import ast
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from documents import DOCUMENTS, ROOT, name_of
from typer.main import get_command

from farflung.__main__ import app


def generated() -> Any:
    """docs/generate.py, which mkdocs calls too."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reference_has_the_job_as_the_code_has_it() -> None:
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    absent = [row for rows in generated().job_rows().values() for row in rows if row not in text]
    assert not absent, "\n".join(absent)
    assert generated().reference() == text, "`make docs` writes it"


EVENTS = [ROOT / room for room in ("api", "cli", "coordinator", "node")]


def emitted() -> dict[str, set[str]]:
    """Each kind of event with its keys, from `event("kind", key=...)` and `{"event": "kind", ...}` in the code."""
    found: dict[str, set[str]] = {}
    for path in (path for folder in EVENTS for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "event":
                if node.args and isinstance(node.args[0], ast.Constant):
                    found.setdefault(node.args[0].value, set()).update(one.arg for one in node.keywords if one.arg)
            elif isinstance(node, ast.Dict):
                keys = [one.value if isinstance(one, ast.Constant) else None for one in node.keys]
                if "event" in keys and isinstance(kind := node.values[keys.index("event")], ast.Constant):
                    found.setdefault(kind.value, set()).update(str(one) for one in keys if one)
    return found


def test_reference_has_every_event_and_its_keys() -> None:
    text = (ROOT / "docs" / "reference.md").read_text()
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (.*) \|$", text[text.index("## Events") :], re.MULTILINE)
    documented = {kind: keys for kinds, keys in rows for kind in re.findall(r"`(\w+)`", kinds)}
    found = emitted()
    assert {"listening", "view", "step", "done", "error"} <= found.keys()
    for kind, keys in found.items():
        assert kind in documented, f"the event {kind!r} is not in docs/reference.md"
        missing = {key for key in keys - {"event", "time"} if f"`{key}`" not in documented[kind]}
        assert not missing, f"the event {kind!r} has {sorted(missing)}, docs/reference.md does not"


def commands() -> list[str]:
    found = []
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        below = getattr(command, "commands", {})
        found += [f"{name} {one}" for one in below] or [name]
    return found


@pytest.mark.parametrize("name", commands())
def test_reference_names_every_command(name: str) -> None:
    text = (ROOT / "docs" / "reference.md").read_text()
    first, _, second = name.partition(" ")
    assert f"farflung {name}" in text or (second and re.search(rf"`(farflung )?{first}[^`\n]*\b{second}\b", text))


@pytest.mark.parametrize("page", DOCUMENTS, ids=name_of)
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} points to {target}"
