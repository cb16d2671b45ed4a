"""``farflung generate``."""

from typing import Annotated

import typer

from ..one_run.asking import calling, operating
from ..one_run.checkpoints import checkpoints_of
from ..screen.output import Output


def generate(
    output: Output,
    state: Annotated[
        str,
        typer.Argument(
            metavar="STATE",
            help="The run's folder, an exported folder, an operator's link, or the address of checkpoints (s3://...).",
        ),
    ],
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The text to go on from.")],
    *,
    tokens: Annotated[int, typer.Option(min=1, metavar="N", help="How many tokens to add.")] = 200,
    temperature: Annotated[float, typer.Option(min=0.0, metavar="T", help="0: always the likeliest token.")] = 0.8,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, metavar="N", help="The same seed gives the same text.")
    ] = 1,
    step: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="The checkpoint of this step.", show_default="the newest")
    ] = None,
    through: Annotated[
        str | None,
        typer.Option(
            metavar="nodes|model|layers",
            help="The nodes that train now; or a checkpoint, as a whole model or one layer at a time.",
            show_default="nodes where several stages train, layers where a model does not fit the memory",
        ),
    ] = None,
) -> None:
    """Let a model go on with a text.

    From a checkpoint, on this machine's CPU; or from the nodes that train it just now.
    """
    from ..one_run.generate import collect, way_of

    way = way_of(through, state, step)
    if way == "nodes":
        from ...proto.control_pb2 import GenerateRequest
        from ..one_run.linkfile import link_text

        with operating(link_text(state)) as link, calling(link) as stub:
            request = GenerateRequest(run=link.run, ticket=link.ticket, prompt=prompt, tokens=tokens, seed=seed)
            request.temperature = temperature
            found = collect(output, stub.Generate(request))
        output.record({"prompt": prompt, **found}) if output.json else output.say(prompt + found["text"])
        return
    from ...node.generation.generate import generate as write

    with checkpoints_of(state, step) as folder:
        text = write(folder, prompt, tokens, seed, temperature, step=step, through=way, say=output.note)
    output.record({"prompt": prompt, "text": text}) if output.json else output.say(prompt + text)
