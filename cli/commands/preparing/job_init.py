"""``farflung job init``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ....proto.errors import FarflungError
from ...one_run.asking import status_record
from ...screen.output import Output


def init(
    output: Output,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The job file to write.")] = Path("job.toml"),
    *,
    pretrained: Annotated[Path | None, typer.Option(metavar="FOLDER", help="A model folder to fine-tune.")] = None,
    data: Annotated[str | None, typer.Option(metavar="FILE", help="A file of data, or a pattern of several.")] = None,
    hardware: Annotated[
        str | None,
        typer.Option(metavar="STATE|LINK|FILE", help="Fit it to the nodes of that run, or to a cluster file."),
    ] = None,
    mode: Annotated[str, typer.Option(metavar="delta|gradient", help="How nodes agree on weights.")] = "delta",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented job file."""
    from ....coordinator.data.recognise import source_of
    from ...jobs.job_init import write

    source = None if data is None else (data, *source_of(data))
    following = write(path, pretrained, force, devices(hardware) if hardware else (), source, mode)
    output.record({"path": str(path)}) if output.json else output.say(f"wrote {path}; next: {following}")


def devices(source: str) -> list[Mapping[str, Any]]:
    """What the nodes of a run have, or the devices of a cluster file."""
    if Path(source).is_file():
        from ....scheduler.networks.network import Network

        return [{"memory_bytes": one.memory_bytes} for one in Network.load(Path(source)).devices]
    nodes = status_record(source)["nodes"]
    nodes = [node for node in nodes if node["in"]] or nodes  # after its end: all that the run had
    if not nodes:
        raise FarflungError(f"no node has joined the run of {source} yet", "join first, or leave --hardware out")
    return [{"kind": one["kind"], "description": one["device"], "memory_bytes": one["memory_bytes"]} for one in nodes]
