"""The documents say what the code does: job keys, commands, links between files."""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from farflung.__main__ import app
from farflung.proto.job import Job

ROOT = Path(__file__).parents[2]
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def job_rows() -> list[str]:
    """The rows of the job tables in docs/reference.md, as the schema has them. A failure prints the row to write."""
    rows = []
    for table in Job.model_fields.values():
        kind: Any = table.annotation
        for key, field in kind.model_fields.items():
            default = field.default
            text = repr(list(default) if isinstance(default, tuple) else default).replace("'", '"')
            shown = (
                "" if default is None or default == "" else f"`{text.lower() if isinstance(default, bool) else text}`"
            )
            rows.append(f"| `{key}` | {field.description or ''} | {shown} |")
    return rows


def test_reference_has_every_key_of_the_job() -> None:
    text = (ROOT / "docs" / "reference.md").read_text()
    missing = [row for row in job_rows() if row not in text]
    assert not missing, "\n".join(missing)


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


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} points to {target}"


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_commands_in_documents_exist(page: Path) -> None:
    known = {name.split()[0] for name in commands()}
    for word in re.findall(r"^    (?:\$ )?farflung ([a-z]+)", page.read_text(), re.MULTILINE):
        assert word in known, f"{page.name} types farflung {word}"
