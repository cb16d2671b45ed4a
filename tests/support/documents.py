"""The documents and what they tell people to type."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "deploy").rglob("README.md"),
    ]
)
_SHELL = ("sh", "bash", "shell", "console")
_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
_BETWEEN = frozenset({"&&", "||", "|", ";", "&", "(", ")", "do", "done", "then"})


@dataclass(frozen=True)
class Typed:
    """One program with its words, as a document tells people to type it."""

    page: Path
    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}: {shlex.join(self.words)}"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[tuple[str, int, list[str]]]:
    """(language, number of the first line, lines) of each block of code; an indented block's language is ``sh``."""
    fence, language, start, before = "", "", 0, ""
    found: list[str] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate([*lines, ""], 1):
        opened = re.match(r"^(```+)\s*(\w*)\s*$", line)
        if fence:
            if line.startswith(fence):
                yield language, start, found
                fence, found = "", []
            else:
                found.append(line)
        elif opened:
            fence, language, start, found = opened[1], opened[2], number + 1, []
        elif line.startswith("    ") and line.strip() and (found or not before.strip()):
            start = start if found else number
            found.append(line[4:])
        elif found:
            yield "sh", start, found
            found = []
        before = line


def typed(page: Path) -> Iterator[Typed]:
    """Every program that the page's shell blocks start, also inside pipes, loops and ``$(...)``."""
    for language, start, lines in blocks(page):
        if language not in _SHELL:
            continue
        number = start
        for line in "\n".join(lines).replace("\\\n", " ").splitlines():
            for words in _simple(re.sub(r"(^|\s)#.*$", "", line)):
                yield Typed(page, number, words)
            number += 1


def _simple(line: str) -> Iterator[tuple[str, ...]]:
    lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="();|&")
    lexer.commenters, lexer.whitespace_split = "", True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word in _BETWEEN:
            yield from _program(words)
            words = []
        else:
            words.append(word)


def _program(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The words from the program's name on; nothing for a loop's head or bare assignments."""
    rest = list(words)
    while rest and (_ASSIGNMENT.match(rest[0]) or rest[0] in ("export", "sudo", "exec")):
        rest.pop(0)
    if rest and rest[0] not in ("for", "while", "if"):
        yield tuple(rest)


def farflungs(command: Typed) -> Iterator[tuple[str, ...]]:
    """The words after ``farflung``, also where ssh, docker or kubectl carries them to another machine."""
    words = command.words
    if words[0] == "kubectl" and "--" in words:
        words = words[words.index("--") + 1 :]
    elif words[0] == "ssh":
        words = words[2:]
    elif words[0] == "docker" and "run" in words:
        at = next((at for at, one in enumerate(words) if re.fullmatch(r"farflung(:\w+)?|coordinator", one)), None)
        if at is not None and words[at + 1 :]:
            yield words[at + 1 :]
        return
    if words and words[0].rpartition("/")[2] == "farflung":
        yield words[1:]
    elif words[:3] == ("python", "-m", "farflung"):
        yield words[3:]
