"""``farflung codecs``, ``farflung codecs measure`` and ``farflung codecs advise``."""

from typing import Annotated

import typer

from ...screen.output import Output


def codecs(output: Output, *, context: typer.Context) -> None:
    """List every codec: its bits, its keys, where it may be used."""
    if context.invoked_subcommand is None:
        from ...codecs import table
        from ...screen.tables import show_codecs

        rows = table()
        for row in rows if output.json else ():
            output.record(row)
        if not output.json:
            show_codecs(output, rows)


def measure(
    output: Output,
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="NAME or NAME:key=value,key=value.")],
    *,
    distribution: Annotated[
        str, typer.Option(metavar="normal|student3|lognormal|hetero", help="The distribution of the values.")
    ] = "normal",
    tensor: Annotated[str | None, typer.Option(metavar="FILE", help="The tensors of a safetensors file.")] = None,
    size: Annotated[int, typer.Option(min=1, metavar="N", help="Values of a drawn tensor.")] = 1 << 16,
    workers: Annotated[int, typer.Option(min=1, metavar="N", help="Average over N senders.")] = 1,
    trials: Annotated[int, typer.Option(min=1, metavar="N", help="How many draws.")] = 10,
    device: Annotated[str, typer.Option(metavar="cpu|cuda:N", help="The device that encodes.")] = "cpu",
    allow_code: Annotated[
        list[str] | None, typer.Option(metavar="MODULE", help="A module whose codec (MODULE.NAME) may be run.")
    ] = None,
) -> None:
    """Measure the bits, the error and the speed of a codec.

    The error, nmse, is the squared error of one message divided by the values' own square: 0 loses nothing, 1 all.
    Training does not lose that part: by error feedback, later messages send what one message leaves out.
    """
    from ...codecs import measure as measured
    from ...screen.tables import show_measured

    record = measured(
        spec,
        distribution,
        tensor,
        size,
        workers,
        trials,
        device=device,
        allow_code=tuple(allow_code or ()),
    )
    output.record(record) if output.json else show_measured(output, record)


def advise(
    output: Output,
    path: Annotated[str, typer.Argument(metavar="GRADIENTS|STATE", help="A safetensors file, or a state folder.")],
    *,
    link: Annotated[str, typer.Option(metavar="RATE", help="The rate of each member's line, e.g. 100mbit.")],
    step: Annotated[float, typer.Option(min=1e-6, metavar="SECONDS", help="How long a step computes.")],
    members: Annotated[int, typer.Option(min=2, metavar="N", help="How many nodes average their updates.")] = 8,
    latency: Annotated[str, typer.Option(metavar="TIME", help="From member to member, one way, e.g. 30ms.")] = "50ms",
) -> None:
    """Say which codec a link allows, and what it costs in loss.

    GRADIENTS is a file with those of a typical step of yours; of a run the means that its optimiser keeps are used.
    """
    from ...codecs import advise as advised
    from ...screen.tables import show_advice

    made = advised(path, members, link, step, latency)
    output.record(made) if output.json else show_advice(output, made)
