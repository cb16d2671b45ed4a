"""``farflung runs``."""

from pathlib import Path
from typing import Annotated

import typer

from ..screen.output import Output


def runs(
    output: Output,
    *,
    folder: Annotated[
        Path, typer.Option("--in", metavar="FOLDER", help="The folder that holds the runs' state folders.")
    ] = Path("runs"),
) -> None:
    """List the runs whose state folders are on this machine."""
    from ...coordinator.observe.status import read_status
    from ...coordinator.store.engines.sqlite import FILE
    from ..one_run.status import show_runs

    records = [read_status(database.parent) for database in sorted(folder.glob(f"*/{FILE}"))]
    for record in records if output.json else ():
        output.record(record)
    if not output.json:
        show_runs(output, records, folder)
