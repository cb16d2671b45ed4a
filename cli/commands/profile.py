"""``farflung profile``."""

from pathlib import Path
from typing import Annotated

import typer

from ..one_run.asking import calling, operating
from ..screen.output import Output
from .words import Target


def profile(
    output: Output,
    target: Target,
    *,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="How many steps.")] = 5,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write it.", show_default="STATE/trace-TIME.json")
    ] = None,
) -> None:
    """Record a trace of the next steps across all nodes.

    One file in Chrome's format, for ui.perfetto.dev: what each node did when, by one clock.
    """
    from ...proto.control_pb2 import ProfileRequest
    from ..one_run.linkfile import link_text
    from ..one_run.profile import collect, default_path, sentences

    target = link_text(target)
    with operating(target) as link:
        request = ProfileRequest(run=link.run, ticket=link.ticket, steps=steps)
        with calling(link) as stub:
            found = collect(output, link.run, stub.Profile(request), out or default_path(target))
    output.record(found) if output.json else output.say(sentences(found))
