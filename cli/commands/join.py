"""``farflung join``: this machine becomes a node of a run."""

import os
from pathlib import Path
from typing import Annotated

import typer

from ..screen.output import INTERRUPTED, Output
from .words import Device, Insecure, OffloadFolder


def join(
    output: Output,
    link: Annotated[
        str,
        typer.Argument(
            metavar="LINK",
            envvar="FARFLUNG_LINK",
            help="farflung://HOST:PORT/#TICKET, as the coordinator prints it; @FILE: the link in FILE.",
        ),
    ],
    *,
    device: Device = "auto",
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="This node's name.", show_default="the next free node-N")
    ] = None,
    advertise: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where the other nodes reach this one.")
    ] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where to listen.")] = None,
    allow_code: Annotated[
        list[str] | None, typer.Option(metavar="MODULE", help="A module whose functions the job may call.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where this node keeps its key and fetched data.")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where Prometheus finds this node's metrics.")
    ] = None,
    insecure: Insecure = False,
    pause_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The node pauses while this file exists; so it does on SIGUSR1.")
    ] = None,
    island: Annotated[
        int, typer.Option(min=1, metavar="N", help="N devices of this machine, from --device on, form one node.")
    ] = 1,
    data: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Private data, for a run whose nodes have their own.")
    ] = None,
    require: Annotated[
        str | None,
        typer.Option(metavar="WORDS", help="Join only a run with all of these: private, secure, robust, no-code, tls."),
    ] = None,
    max_upload: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="The most bits a second that it sends over all links together, e.g. 20mbit."),
    ] = None,
    max_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The most that it takes of the device's memory, e.g. 6GB.")
    ] = None,
    max_disk: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The most that it keeps of the training data, e.g. 20GB.")
    ] = None,
    offload_folder: OffloadFolder = None,
    hours: Annotated[float | None, typer.Option(min=0.0, metavar="H", help="Leave after H hours.")] = None,
    patience: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="How long it tries to reach a coordinator that does not answer: 30m, 12h, 7d, forever, or 0.",
            show_default="0 for a first join, forever for a node that was in the run",
        ),
    ] = None,
    lifeline: Annotated[bool, typer.Option("--lifeline", hidden=True)] = False,
) -> int:
    """Join a run with this machine.

    Measures the device and the links, gets a stage of the model and trains. Ctrl-C says goodbye first.
    """
    from ...node.device.identity import keeps_key
    from ...node.device.own_folder import own_folder, writable
    from ...node.join import find
    from ...node.promises import required_of
    from ...proto.errors import Unreachable
    from ...proto.words.link import parse_link
    from ..one_run.linkfile import link_text
    from ..own_data import opener
    from ..quantities import duration, rate, size
    from ..screen.terminal import screen

    output.lasts = True
    address, required = parse_link(link_text(link)), required_of(require)
    upload = rate(max_upload, "--max-upload") or 0.0
    memory, disk = (
        size(text, name) if text else 0 for text, name in ((max_memory, "--max-memory"), (max_disk, "--max-disk"))
    )
    looks = None if patience is None else duration(patience, "--patience")
    # Idle threads must not spin while another process has their core; read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    cache = writable(own_folder(cache))  # before a ticket is spent
    if offload_folder is not None:
        writable(offload_folder, "moments", "--offload-folder DIR, or leave it out")
    try:
        find(address)  # before the seconds that torch takes: a wrong address is a matter of milliseconds
    except Unreachable:
        if not (looks or (looks is None and keeps_key(cache, address.run, name or ""))):  # else it waits
            raise
    from ...node.agent import run as run_node
    from ...node.device.limits import Limits
    from ...node.life import Interrupted

    if lifeline:
        from ..local.children import hold_lifeline

        hold_lifeline()
    try:
        with screen(output) as view:
            return run_node(
                address,
                device=device,
                island=island,
                name=name,
                advertise=advertise,
                listen=listen,
                allow_code=tuple(allow_code or ()),
                cache=cache,
                insecure=insecure,
                metrics=metrics,
                pause_file=pause_file,
                limits=Limits(upload, memory, disk, hours or 0.0),
                own_data=None if data is None else opener(data),
                require=required,
                patience=looks,
                offload_folder=offload_folder,
                emit=view.show,
            )
    except Interrupted as interrupt:
        output.note(
            "interrupted; the run has heard a goodbye and goes on without this node; the same line joins again"
            if interrupt.heard
            else "interrupted; the coordinator did not answer, so the run has to find out by itself"
        )
        return INTERRUPTED
