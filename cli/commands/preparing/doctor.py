"""``farflung doctor``."""

from typing import Annotated

import typer

from ...screen.output import Output
from ..words import Device


def doctor(
    output: Output,
    link: Annotated[
        str | None,
        typer.Argument(
            metavar="LINK",
            envvar="FARFLUNG_LINK",
            help="The link that this machine would join with; @FILE: the link in FILE.",
        ),
    ] = None,
    *,
    device: Device = "auto",
) -> int:
    """Say what would stop this machine from joining."""
    from ...doctor.checks import examine
    from ...doctor.findings import show
    from ...one_run.linkfile import link_text

    return show(output, examine(link and link_text(link), device))
