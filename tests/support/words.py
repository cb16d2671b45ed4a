"""Whether farflung's command line takes some words, without running the command."""

import os
import shlex
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

from typer.main import get_command

from farflung.__main__ import app


def check_words(words: Sequence[str], link_in_environment: bool = False) -> None:
    """Raises what a person would see as a mistake: an unknown command or option, a missing or surplus argument.

    ``words``: without the first, ``farflung``. No file is opened and nothing is started.
    """
    command: Any = get_command(app)
    path, rest = "farflung", list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        path += " " + rest[0]
        command = command.commands[rest.pop(0)]
    if rest and hasattr(command, "commands") and not rest[0].startswith("-"):
        raise AssertionError(f"no such command: {path} {rest[0]}")
    environment = {name: value for name, value in os.environ.items() if name != "FARFLUNG_LINK"}
    if link_in_environment:
        environment["FARFLUNG_LINK"] = "farflung://h:1/#x"
    with patch.dict(os.environ, environment, clear=True):
        try:
            command.make_context(path, rest)
        except Exception as error:
            why = error.format_message() if hasattr(error, "format_message") else error
            raise AssertionError(f"farflung {shlex.join(words)}: {why}") from error


def farflung_lines(text: str) -> Iterator[list[str]]:
    """The words after ``farflung`` of every shell command in the text that calls it; continued lines are joined."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        for at, word in enumerate(words):
            if word == "farflung" or (word.endswith("/farflung") and (at == 0 or words[at - 1] == "exec")):
                yield words[at + 1 :]
