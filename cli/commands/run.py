"""``farflung run``: a coordinator and nodes on this machine."""

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from ..jobs.codecs_of_a_job import check_codec
from ..screen.output import INTERRUPTED, Output
from .words import Device, GiveUp, Insecure, OffloadFolder, State


def run(
    output: Output,
    job: Annotated[Path, typer.Argument(metavar="JOB", help="The job file.")],
    *,
    nodes: Annotated[int, typer.Option(min=1, metavar="N", help="How many nodes to start.")] = 4,
    state: State = None,
    device: Device = "auto",
    offload_folder: OffloadFolder = None,
    insecure: Insecure = False,
    give_up: GiveUp = False,
) -> int:
    """Train by a job file, everything on this machine.

    Starts a coordinator and N nodes; starting again with the same state folder goes on.
    """
    from ...job.files import load_job
    from ..local.run import LocalRun
    from ..local.run import run as run_here
    from ..next_words import following
    from ..screen.terminal import screen

    output.lasts = True
    read = load_job(job, check_codec=check_codec)
    code = tuple(sorted(read.modules))
    plan = LocalRun(
        job,
        state or Path("runs") / read.run.name,
        nodes,
        device,
        code,
        insecure,
        debug=output.debug,
        give_up=give_up,
        offload_folder=offload_folder,
    )
    view = screen(output)
    try:
        with view:
            status = run_here(plan, view.show)
    except KeyboardInterrupt:
        output.note(view.summary.parting())
        return INTERRUPTED
    if status == 0:
        with contextlib.suppress(OSError):  # the run is done all the same
            output.say(following(view.summary.state, read.model, task=read.train.task))
    return status
