"""Arguments and options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

State = Annotated[
    Path | None, typer.Option("--state", metavar="FOLDER", help="The run's folder.", show_default="runs/NAME")
]
LinkFile = Annotated[
    Path | None,
    typer.Option("--link-file", metavar="FILE", help="Write the link there too, for its owner's eyes only."),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="No TLS anywhere: only for a network that you trust.")]
GiveUp = Annotated[bool, typer.Option("--give-up", help="End without the last checkpoint if it cannot be stored.")]
OffloadFolder = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Where moments lie that the job offloads, e.g. on NVMe, not main memory."),
]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda:N|mps", help="What trains.")]
Target = Annotated[
    str, typer.Argument(metavar="STATE|LINK", help="The run's folder, or its link (@FILE: the link in FILE).")
]
TheNode = Annotated[str, typer.Argument(metavar="NODE", help="The node.")]
Node = Annotated[str | None, typer.Argument(metavar="NODE", help="The node; without it, the whole run.")]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, shown by status and the page.")]
