"""``farflung demo``."""

from typing import Annotated

import typer

from ..screen.output import Output
from .words import State


def demo(
    output: Output,
    *,
    state: State = None,
    nodes: Annotated[int, typer.Option(min=1, metavar="N", help="How many nodes.")] = 4,
) -> int:
    """Four nodes on this machine train on Shakespeare.

    Starts a coordinator and the nodes, and ends with the folder of a model and a sample of its text.
    """
    from ...examples.shakespeare import write_text
    from ..demo import demo as play

    output.lasts = True
    return play(output, state, nodes, write_text)
