"""What of the documentation comes from the code. mkdocs calls `on_files`; run alone, it rewrites docs/reference.md.

* docs/reference.md: the tables of the job file, from the fields of `farflung.job.schema` (committed, so that they are
  there for people who read the files).
* commands.html: every command with its arguments and options, from the command line itself.
* deploy/*.html: the READMEs of the recipes.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference.md"
RECIPES = ("docker", "compose", "helm", "systemd", "skypilot", "vast", "notebook", "slurm", "grafana")


def job_rows() -> dict[str, list[str]]:
    """The rows of each table of the job file: key, what is allowed, default."""
    from farflung.job.schema import Job
    from farflung.job.tables.data import Mixed
    from farflung.job.tables.evaluation import EvalSet
    from farflung.job.tables.model import Lora

    tables: dict[str, Any] = {name: field.annotation for name, field in Job.model_fields.items()}
    tables |= {"model.lora": Lora, "data.mix": Mixed, "eval.sets": EvalSet}
    return {name: [_row(key, field) for key, field in table.model_fields.items()] for name, table in tables.items()}


def _row(key: str, field: Any) -> str:
    default = field.default
    text = repr(list(default) if isinstance(default, tuple) else default).replace("'", '"')
    if isinstance(default, bool):
        text = text.lower()
    shown = "" if default is PydanticUndefined or default in (None, "") else f"`{text}`"
    return f"| `{key}` | {field.description or ''} | {shown} |"


def reference() -> str:
    """docs/reference.md with the tables as they should be; the words around them are people's."""
    text = REFERENCE.read_text(encoding="utf-8")
    for name, rows in job_rows().items():
        table = re.compile(rf"(### \[{name}\]\n.*?\n\| --- \| --- \| --- \|\n)(?:\|[^\n]*\n)*", re.DOTALL)
        body = "".join(f"{row}\n" for row in rows)
        text, found = table.subn(lambda match, body=body: match[1] + body, text, count=1)
        if not found:
            raise SystemExit(f"docs/reference.md has no table ### [{name}]")
    return text


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
