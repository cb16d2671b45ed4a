"""What `--help` says: whole lines at 80 columns, one style, and a sentence for everything that can be typed."""

import re
from collections.abc import Iterator

import click
import pytest
from typer.main import get_command

from farflung.__main__ import app
from farflung.cli.screen.help import plainly


def commands() -> Iterator[tuple[str, click.Command]]:
    def below(path: str, one: click.Command) -> Iterator[tuple[str, click.Command]]:
        yield path, one
        for name, other in sorted(getattr(one, "commands", {}).items()):
            yield from below(f"{path} {name}", other)

    yield from below("farflung", get_command(app))


EVERY = dict(commands())


@pytest.mark.parametrize("path", EVERY)
def test_no_line_of_a_help_is_cut(path: str) -> None:
    one = EVERY[path]
    context = one.context_class(one, info_name=path, terminal_width=78)
    text = one.get_help(context)
    assert max(map(len, text.splitlines())) <= 78  # two are left free, as in a terminal of 80
    assert not [line for line in text.splitlines() if line.endswith("...") and "[ARGS]..." not in line], text


@pytest.mark.parametrize("path", [path for path in EVERY if path != "farflung wan"])
def test_everything_that_can_be_typed_has_a_sentence(path: str) -> None:
    assert (EVERY[path].help or "").strip()[:1].isupper()
    for one in EVERY[path].params:
        if getattr(one, "hidden", False) or one.name in ("help", "context"):
            continue
        assert getattr(one, "help", None), f"{path} {one.name} has no help"
        assert one.help.rstrip(")")[-1] in ".05?:" or "=" in one.help, f"{path} {one.name}: {one.help!r} is no sentence"
        if not getattr(one, "is_flag", False):
            assert one.metavar, f"{path} {one.name} is named by its type"


@pytest.mark.parametrize("path", [path for path in EVERY if path != "farflung wan"])
def test_a_help_is_in_words(path: str) -> None:
    one = EVERY[path]
    text = one.get_help(one.context_class(one, info_name=path, terminal_width=118))
    assert not re.search(r"[{}]|x>=|<=x|<str>|<path>|default: \(", text), text


def test_limits_and_defaults_read_as_words() -> None:
    assert plainly("Pipelines.  [default: (the best); x>=1]") == "Pipelines.  [default: the best; 1 or more]"
    assert plainly("H.  [x>=0.0]") == "H.  [0 or more]" and plainly("A share.  [0<=x<=1]") == "A share.  [0 to 1]"
    assert plainly("N.  [default: 1; 0<=x<=9223372036854775807]") == "N.  [default: 1; 0 or more]"
    assert plainly("The link ([run] name).") == "The link ([run] name)."
