"""``farflung status``."""

from typing import Annotated

import typer

from ..one_run.asking import status_record
from ..screen.output import Output
from .words import Target


def status(
    output: Output,
    target: Target,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again, until the run is over.")] = False,
    every: Annotated[float, typer.Option(min=0.2, metavar="S", help="Seconds between two looks.")] = 2.0,
) -> None:
    """Show who is in, who does what, and why anything waits."""
    from ..one_run.status import show
    from ..one_run.watch import watch as keep_looking

    if watch:
        keep_looking(output, lambda: status_record(target), every)
    else:
        record = status_record(target)
        output.record(record) if output.json else show(output, record)
