"""What of the documentation comes from the code. mkdocs calls `on_files`; run alone, it rewrites docs/reference.md.

* docs/reference.md: the tables of the job file, from the fields of `farflung.proto.job` (committed, so that they are
  there for people who read the files).
* commands.html: every command with its arguments and options, from the command line itself.
* deploy/*.html: the READMEs of the recipes.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference.md"
RECIPES = ("docker", "compose", "helm", "systemd", "skypilot", "vast", "notebook", "slurm", "grafana")
_FIRST, _AFTER = "### [run]\n", "A mistake is refused at the start"


def job_tables() -> str:
    """The tables of the job file as Markdown: key, what is allowed, default."""
    from farflung.proto.job import Job

    parts = []
    for name, table in Job.model_fields.items():
        kind: Any = table.annotation
        about = re.sub(r"^``\[\w+\]``[:.]\s*", "", (kind.__doc__ or "").strip())
        rows = [_row(key, field) for key, field in kind.model_fields.items()]
        lines = [f"### [{name}]", "", about, "", "| key | allowed | default |", "| --- | --- | --- |", *rows, ""]
        parts.append("\n".join(lines))
    return "\n".join(parts) + "\n"


def _row(key: str, field: Any) -> str:
    default = field.default
    text = repr(list(default) if isinstance(default, tuple) else default).replace("'", '"')
    if isinstance(default, bool):
        text = text.lower()
    return f"| `{key}` | {field.description or ''} | {'' if default in (None, '') else f'`{text}`'} |"


def reference() -> str:
    """docs/reference.md as it should be."""
    text = REFERENCE.read_text(encoding="utf-8")
    start, end = text.index(_FIRST), text.index(_AFTER)
    return text[:start] + job_tables() + text[end:]


def commands() -> str:
    """What every command says of itself with ``--help``, as Markdown."""
    from typer.main import get_command

    from farflung.__main__ import app

    parts = ["# Commands\n"]
    for path, command in _leaves("farflung", get_command(app)):
        text = command.get_help(command.make_context(path, [], resilient_parsing=True))
        parts.append(f"## {path}\n\n```text\n{text.strip()}\n```\n")
    return "\n".join(parts)


def _leaves(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", {})
    if not below:
        yield path, command
    for name, one in below.items():
        yield from _leaves(f"{path} {name}", one)


def recipe(name: str) -> str:
    """A recipe's README, with its links to other recipes' folders turned into links between pages."""
    text = (ROOT / "deploy" / name / "README.md").read_text(encoding="utf-8")
    return (
        re.sub(r"\]\(\.\./(\w+)\)", r"](\1.md)", text)
        + f"\nThe files are in the repository's folder `deploy/{name}`.\n"
    )


def on_files(files: Any, config: Any) -> Any:
    """mkdocs: add the pages that are not files."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "commands.md", content=commands()))
    for name in RECIPES:
        files.append(File.generated(config, f"deploy/{name}.md", content=recipe(name)))
    return files


if __name__ == "__main__":
    REFERENCE.write_text(reference(), encoding="utf-8")
