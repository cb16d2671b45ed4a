"""``farflung plan``."""

from pathlib import Path
from typing import Annotated

import typer

from ...screen.output import Output


def plan(
    output: Output,
    *,
    cluster: Annotated[
        Path,
        typer.Option(
            metavar="FILE|WORDS",
            help='Regions, devices, latencies, bandwidths; or words: "8xH100@oregon 4x4090@home:200mbit/20mbit".',
        ),
    ],
    job: Annotated[
        Path | None,
        typer.Option(metavar="JOB", help="The job file to plan for.", show_default="DT-FM's 24 layers of width 2048"),
    ] = None,
    stages: Annotated[
        int | None, typer.Option(min=1, metavar="P", help="Stages of a pipeline.", show_default="the best")
    ] = None,
    pipelines: Annotated[
        int | None, typer.Option(min=1, metavar="D", help="Pipelines.", show_default="the best")
    ] = None,
    objective: Annotated[
        str,
        typer.Option(
            metavar="step|dtfm|cost",
            help="What to minimise: the seconds of a step, DT-FM's published cost, or money.",
        ),
    ] = "step",
    speed: Annotated[
        float | None,
        typer.Option(min=0, metavar="N", help="The wanted tokens a second, for as little money as possible."),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(metavar="30d", help="Time for all tokens (36h, 30d, 2w), for as little money as possible."),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(metavar="10B", help="The tokens to train.", show_default="those of the job's steps"),
    ] = None,
    price: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=DOLLARS,...",
            help="Dollars an hour of a card, a place or a device: 4090=0.3,home=0.",
            show_default="usual prices of cards",
        ),
    ] = None,
    time_limit: Annotated[float, typer.Option(min=0.0, metavar="S", help="Seconds of search.")] = 10.0,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed finds the same plan.")] = 0,
    picture: Annotated[Path | None, typer.Option(metavar="OUT.svg", help="Draw the map and the timeline.")] = None,
    memory: Annotated[bool, typer.Option("--memory", help="Show the memory that a node of each stage needs.")] = False,
) -> None:
    """Predict a cluster's speed, and what each device would do."""
    from ...planning.memory import island_rows
    from ...planning.memory import rows as memory_rows
    from ...planning.plan import run as search
    from ...planning.plan import table as rows_of
    from ...screen.tables import show_plan, table

    with output.working(f"looking for a plan, for up to {time_limit:g} s"):
        made = search(
            cluster,
            job,
            stages,
            pipelines,
            objective,
            time_limit,
            seed=seed,
            picture=picture,
            speed=speed,
            price=price,
            deadline=deadline,
            tokens=tokens,
            memory=memory,
        )
    if output.json:
        output.record(made)
        return
    show_plan(output, rows_of(made), made)
    if memory:
        header, *held = memory_rows(made["memory"])
        output.say()
        table(output, header, held)
        if devices := island_rows(made["memory"]):
            output.say()
            table(output, devices[0], devices[1:])
