"""``farflung codecs`` and ``farflung codecs measure``."""

from typing import Annotated

import typer

from ..screen.output import Output


def codecs(output: Output, *, context: typer.Context) -> None:
    """Every codec: bits, traits, where it may be used."""
    if context.invoked_subcommand is None:
        from ..codecs import table
        from ..screen.tables import show_codecs

        rows = table()
        for row in rows if output.json else ():
            output.record(row)
        if not output.json:
            show_codecs(output, rows)


def measure(
    output: Output,
    spec: Annotated[str, typer.Argument(help="name or name:key=value,key=value")],
    *,
    distribution: Annotated[str, typer.Option(metavar="normal|student3|lognormal|hetero")] = "normal",
    tensor: Annotated[str | None, typer.Option(metavar="FILE", help="The tensors of a safetensors file.")] = None,
    size: Annotated[int, typer.Option(min=1, help="Elements of a drawn tensor.")] = 1 << 16,
    workers: Annotated[int, typer.Option(min=1, help="Average over so many senders.")] = 1,
    trials: Annotated[int, typer.Option(min=1)] = 10,
    device: Annotated[str, typer.Option(metavar="cpu|cuda:N")] = "cpu",
) -> None:
    """Bits, error and speed of a codec."""
    from ..codecs import measure as measured
    from ..screen.tables import show_record

    record = measured(spec, distribution, tensor, size, workers, trials, device)
    output.record(record) if output.json else show_record(output, record)
