"""The text of ``--help``: typer's, with its braces, brackets and inequalities replaced by words, in any version of
typer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup

_EXTRAS = re.compile(r"  \[([^\[\]]*)\]$", re.DOTALL)
_LEAST, _BOTH = re.compile(r"x>=(\S+)"), re.compile(r"(\S+)<=x<=(\S+)")
_ANY_NUMBER = 2**53
"""An upper limit from this number on is not shown."""


def plainly(words: str) -> str:
    """A help sentence whose ``[default: (the best); x>=1]`` reads ``[default: the best; 1 or more]``."""
    found = _EXTRAS.search(words)
    if not found:
        return words
    said = [one for part in found[1].split("; ") if (one := _extra(" ".join(part.split())))]
    return words[: found.start()] + (f"  [{'; '.join(said)}]" if said else "")


def _extra(part: str) -> str:
    if part.startswith("default: (") and part.endswith(")"):
        return f"default: {part[10:-1]}"
    if least := _LEAST.fullmatch(part):
        return f"{float(least[1]):g} or more"
    if both := _BOTH.fullmatch(part):
        least_word = f"{float(both[1]):g}"
        return f"{least_word} or more" if float(both[2]) >= _ANY_NUMBER else f"{least_word} to {float(both[2]):g}"
    return part


def _readable(formatter: type[Any]) -> type[Any]:
    class Readable(formatter):  # type: ignore[misc]
        def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
            super().write_usage(prog, re.sub(r"[{}]", "", args), prefix)

        def write_dl(self, rows: Sequence[tuple[str, str]], *more: Any, **words: Any) -> None:
            super().write_dl([(re.sub(r" <\w+>$", "", name), plainly(text)) for name, text in rows], *more, **words)

    return Readable


class Command(TyperCommand):
    """A command whose help has limits and defaults in words."""

    def get_help(self, ctx: Any) -> str:
        ctx.formatter_class = _readable(ctx.formatter_class)
        return super().get_help(ctx)


class Group(TyperGroup):
    """A group of commands with such help."""

    def get_help(self, ctx: Any) -> str:
        ctx.formatter_class = _readable(ctx.formatter_class)
        return super().get_help(ctx)
