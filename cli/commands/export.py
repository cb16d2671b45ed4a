"""``farflung export``."""

from pathlib import Path
from typing import Annotated

import typer

from ..one_run.checkpoints import checkpoints_of
from ..screen.output import Output


def export(
    output: Output,
    state: Annotated[
        str, typer.Argument(metavar="STATE", help="The run's folder, or the address of its checkpoints (s3://...).")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.")],
    *,
    step: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="The checkpoint of this step.", show_default="the newest")
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="The whole model where adapters were trained ([model.lora]).")
    ] = False,
    push: Annotated[
        str | None,
        typer.Option(
            "--push",
            metavar="ORG/NAME",
            help="Upload the folder to the hub, as a private model if it is new.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a checkpoint as a folder that transformers loads."""
    from ...job.model_folder.push import check_target, upload
    from ...node.generation.checkpoint import beside
    from ...node.generation.export import export as write
    from ..next_words import load_line

    if push is not None:
        check_target(push)  # before an hour of writing

    with checkpoints_of(state, step) as found:
        folder, lacks = write(found, out, step=step, merge=merge), beside(found, step)
    address = None if push is None else upload(folder, push)
    if output.json:
        pushed = {"pushed": address} if address else {}
        output.record({"path": str(folder), **({"lacks": lacks} if lacks else {}), **pushed})
    else:
        if lacks:
            output.say(lacks)
        output.say(f"{folder}\nload it: {load_line(folder)}")
        if address:
            output.say(f"on the hub: {address}")
