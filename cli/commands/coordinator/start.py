"""``farflung coordinator start``."""

import contextlib
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ...jobs.codecs_of_a_job import check_codec
from ...screen.output import INTERRUPTED, Output
from ..words import GiveUp, Insecure, LinkFile, State


def start(
    output: Output,
    job: Annotated[Path, typer.Argument(metavar="JOB", help="The job file.")],
    *,
    state: State = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen.")] = "0.0.0.0:7070",
    advertise: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The address in the link, where it differs from --listen.")
    ] = None,
    min_nodes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Begin when N nodes have joined.", show_default="the job's")
    ] = None,
    link_file: LinkFile = None,
    insecure: Insecure = False,
    dial_back: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NETWORK",
            help="A network in which nodes are dialled back too, like 10.0.0.0/8. Repeat it for more.",
            show_default="only where a join comes from",
        ),
    ] = None,
    page: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where the web page is.", show_default="127.0.0.1:7071, or a free port"),
    ] = None,
    no_page: Annotated[bool, typer.Option("--no-page", help="No web page and no metrics.")] = False,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write loss, speed and bytes for TensorBoard.")
    ] = None,
    wandb: Annotated[
        str | None, typer.Option(metavar="PROJECT", help="Send them to a project of Weights & Biases.")
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(metavar="URL", help="postgresql://...: the run's database, for coordinators on several machines."),
    ] = None,
    give_up: GiveUp = False,
    lifeline: Annotated[bool, typer.Option("--lifeline", hidden=True)] = False,
) -> int:
    """Start a run, or go on with one.

    Prints the line that nodes join with. The same state folder resumes from the newest checkpoint.
    """
    from ....coordinator.serve.serve import serve
    from ....job.files import load_job
    from ...next_words import following
    from ...one_run.linkfile import write_link
    from ...screen.terminal import screen

    output.lasts = True
    if lifeline:
        from ...local.children import hold_lifeline

        hold_lifeline()
    os.umask(0o077)  # keys, tokens and data in the state folder are for its owner
    with screen(output) as view:

        def emit(event: dict[str, Any]) -> None:
            if link_file is not None and event["event"] == "listening":
                write_link(link_file, event["link"])
            view.show(event)

        status = serve(
            job,
            state,
            listen,
            advertise,
            min_nodes=min_nodes,
            insecure=insecure,
            emit=emit,
            check_codec=check_codec,
            page=None if no_page else page or "",
            database=database,
            tensorboard=tensorboard,
            wandb=wandb,
            dial_back=dial_back or (),
            give_up=give_up,
        )
    if status == INTERRUPTED:
        output.note(view.summary.parting())
    elif status == 0 and view.summary.state:
        with contextlib.suppress(OSError):  # the run is done all the same
            output.say(following(view.summary.state, load_job(job).model, task=load_job(job).train.task))
    return status
