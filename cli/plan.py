"""What `farflung plan` does, as a function from words to a dictionary; the front door prints it."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy

from ..job.forward import AUTO, expected
from ..scheduler.codecs import bits_of
from ..scheduler.dtfm import Dtfm
from ..scheduler.errors import PlanError
from ..scheduler.estimate import Estimator
from ..scheduler.jobs import paper_workload, workload_of
from ..scheduler.network import Network
from ..scheduler.picture import draw
from ..scheduler.planner import natural, plan
from ..scheduler.plans import Plan
from ..scheduler.predict import indices, predict
from ..scheduler.predict import run as simulate_plan
from ..scheduler.workload import CodecChoice, Workload

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CODING_NANOSECONDS = {"none": 0.0, "bf16": 0.02, "fp16": 0.02, "int8": 0.1, "aqsgd": 0.25}
"""Device nanoseconds for each element at one end, where nobody has measured the codec: a memory-bound pass or two of
a data-centre GPU."""


def run(
    cluster: str | Path,
    job: str | Path | Mapping[str, Any] | None = None,
    stages: int | None = None,
    pipelines: int | None = None,
    objective: str = "step",
    time_limit: float = 10.0,
    seed: int = 0,
    picture: str | Path | None = None,
    speed: float | None = None,
) -> dict[str, Any]:
    """Plans a cluster file for a job file and returns the object that `farflung plan --json` prints.

    Without a job: the model of DT-FM's measurements (24 layers of width 2048, a batch of 1024). picture: where to
    write the SVG. PlanError with one sentence for everything that is wrong with the files or the wish.
    """
    network = Network.load(cluster)
    workload = _workload(job)
    workload = replace(
        workload,
        stages=stages if stages is not None else workload.stages,
        pipelines=pipelines if pipelines is not None else workload.pipelines,
    )
    began = time.monotonic()
    made = plan(network, workload, objective=objective, time_limit=time_limit, seed=seed, speed=speed)
    searched = time.monotonic() - began
    result = describe(network, workload, made)
    result["objective"] = objective
    result["search_s"] = round(searched, 3)
    if picture is not None:
        write_picture(network, workload, made, Path(picture))
        result["picture"] = str(picture)
    return result


def describe(network: Network, workload: Workload, made: Plan) -> dict[str, Any]:
    """The JSON object of a plan, with its prediction and its published cost."""
    predicted = predict(network, workload, made)
    return {
        "pipelines": [list(row) for row in made.pipelines],
        "stages": [list(pair) for pair in made.stages],
        "microbatches": list(made.microbatches),
        "pieces": list(made.pieces),
        "spares": made.spares,
        "codecs": made.codecs,
        "publishers": [list(row) for row in made.publishers],
        "regions": [list(row) for row in made.regions],
        "schedule": made.schedule,
        "in_flight": [list(row) for row in made.in_flight],
        "why": made.why,
        "predicted": predicted.to_dict(),
        "dtfm_total_s": published_cost(network, made),
    }


def published_cost(network: Network, made: Plan) -> float | None:
    """DT-FM's TOTAL of the plan's groups; None where it has nothing to say (interleaved pipelines, one device)."""
    if len(made.nodes) < 2 or len(made.nodes) != len(made.pipelines) * len(made.stages):
        return None
    part = network.subset(sorted(made.nodes, key=natural))
    rows = [[part.index[node] for node in row] for row in made.pipelines]
    return round(Dtfm(part, len(made.stages), len(made.pipelines)).cost_of(numpy.array(rows)).total, 4)


def write_picture(network: Network, workload: Workload, made: Plan, path: Path) -> None:
    """Writes the map and the timeline of a step of at most 12 microbatches a pipeline."""
    estimator = Estimator(network, replace(workload, schedule=made.schedule), made.codecs)
    places, cut = indices(network, workload, made)
    few = tuple(min(count, 12) for count in made.microbatches)
    trace, _ = simulate_plan(estimator, places, cut, few, made.schedule, record=True, whole=True, depths=made.in_flight)
    try:
        path.write_text(draw(network, made, predict(network, workload, made), trace), encoding="utf-8")
    except OSError as error:
        raise PlanError(f"can't write {path}: {error.strerror}") from error


def table(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Rows for a terminal: a header, then a row for each pipeline with its share and its nodes in stage order."""
    header = ("pipeline", "share", *(f"stage {i} [{a}-{b}]" for i, (a, b) in enumerate(result["stages"])))
    rows = [
        (str(number), f"{share} microbatch{'es' if share != 1 else ''}", *row)
        for number, (row, share) in enumerate(zip(result["pipelines"], result["microbatches"], strict=True), 1)
    ]
    return [header, *rows]


def _workload(job: str | Path | Mapping[str, Any] | None) -> Workload:
    if job is None:
        made = paper_workload()
        return replace(made, codecs=(_choice("none", "none", 16.0), _choice("int8", "int8", 16.0)))
    folder = Path(".")
    content: Mapping[str, Any]
    if isinstance(job, Mapping):
        content = job
    else:
        folder = Path(job).parent
        try:
            content = tomllib.loads(Path(job).read_text(encoding="utf-8"))
        except OSError as error:
            raise PlanError(f"can't read {job}: {error.strerror}") from error
        except ValueError as error:
            raise PlanError(f"{job} is not TOML: {error}") from error
    wanted = content.get("activations", {})
    if wanted.get("forward") == AUTO:
        wanted = {**wanted, "forward": expected(content.get("run", {}).get("epochs"))}
        content = {**content, "activations": wanted}
    made = workload_of(content, folder)
    forward, backward = str(wanted.get("forward", "none")), str(wanted.get("backward", "none"))
    plain = 8 * made.activation_bytes
    pairs = dict.fromkeys([("none", "none"), (forward, backward)])
    return replace(made, codecs=tuple(_choice(one, two, plain) for one, two in pairs))


def _choice(forward: str, backward: str, plain: float) -> CodecChoice:
    """A choice of the forward codec's name. Coding is a memory-bound pass or two over the elements at each end."""
    names = [codec.partition(":")[0] for codec in (forward, backward)]
    seconds = sum(CODING_NANOSECONDS.get(name, 0.5) for name in names) * 1e-9
    return CodecChoice(forward, bits_of(forward, plain=plain), bits_of(backward, plain=plain), seconds)
