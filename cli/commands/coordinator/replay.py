"""``farflung coordinator replay``."""

from pathlib import Path
from typing import Annotated

import typer

from ...screen.output import Output


def replay(
    output: Output,
    state: Annotated[
        Path, typer.Argument(metavar="STATE", help="The run's folder, or one of the files in its events/.")
    ],
) -> None:
    """Decide again what a coordinator has decided.

    Shows the first difference, which belongs into a bug report.
    """
    from ....coordinator.replay.replay import replay as run_again

    done = run_again(state)
    if output.json:
        output.record(vars(done))
        return
    starts = f"{done.lives} start{'s' if done.lives != 1 else ''} of the coordinator"
    output.say(
        f"{done.events:,} events of {starts} give the same {done.transitions:,} transitions, "
        f"{done.effects:,} effects and their reasons"
    )
