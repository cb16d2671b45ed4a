"""`farflung plan` as a function from options to a dictionary, which the command prints."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy

from ...job.data.tokenizer_folder import load_tokenizer
from ...job.files import load_job
from ...job.forward import AUTO, expected, with_forward
from ...job.schema import Job
from ...proto.errors import JobError
from ...scheduler.errors import PlanError
from ...scheduler.explaining.instead import instead
from ...scheduler.explaining.picture import SHOWN, draw
from ...scheduler.explaining.predict import indices, predict
from ...scheduler.networks.catalogue import cluster_of, in_words
from ...scheduler.networks.network import Network
from ...scheduler.networks.wishes import speed_for, tokens_of, with_prices
from ...scheduler.planning.choose_inside import room_of
from ...scheduler.planning.planner import natural, plan
from ...scheduler.plans import Plan
from ...scheduler.published.dtfm import Dtfm
from ...scheduler.timing.estimate import Estimator
from ...scheduler.timing.simulated import run as simulate_plan
from ...scheduler.workloads.codecs import bits_of
from ...scheduler.workloads.jobs import lesser_offloads, moment_bytes, paper_workload, workload_of
from ...scheduler.workloads.offload import NONE, offload_of
from ...scheduler.workloads.settled import INSIDE_KEY, as_settled
from ...scheduler.workloads.workload import CodecChoice, Workload
from ..jobs.codecs_of_a_job import check_codec
from ..screen.events.view_lines import stage_text
from .memory import memory_of
from .refusals import check_as_a_start

PLANNING = 0.75
"""The part of the time limit for the plan; the rest is for trying changes of the job that would use its spares."""
INT8_SECONDS = 1e-10
"""Device seconds of coding for each element at one end, used only for the published model: one or two memory-bound
passes of a GPU."""


def run(
    cluster: str | Path,
    job: str | Path | Mapping[str, Any] | None = None,
    stages: int | None = None,
    pipelines: int | None = None,
    objective: str = "step",
    time_limit: float = 10.0,
    *,
    seed: int = 0,
    picture: str | Path | None = None,
    speed: float | None = None,
    price: str | None = None,
    deadline: str | None = None,
    tokens: str | None = None,
    memory: bool = False,
) -> dict[str, Any]:
    """Plans a cluster file for a job file and returns the object that `farflung plan --json` prints.

    Without a job: the model of DT-FM's measurements (24 layers of width 2048, a batch of 1024). picture: where to
    write the SVG. cluster: a file, or words such as 8xH100@oregon (scheduler/networks/catalogue.py). speed: the wanted
    tokens a second, for the least money (objective cost). deadline: the same, as a time for all tokens (36h, 30d),
    which are those of the job's steps, or `tokens` (10B). price: other dollars an hour (scheduler/networks/wishes.py).
    memory: also return the memory of a node of each stage. PlanError, in one sentence, for a mistake in the files or
    the options.
    """
    if picture is not None and Path(picture).suffix.lower() not in ("", ".svg"):
        raise PlanError(f"a picture is an SVG, which browsers show: name it {Path(picture).with_suffix('.svg').name}")
    words = str(cluster)
    network = cluster_of(words) if in_words(words) and not Path(words).exists() else Network.load(cluster)
    if price is not None:
        network = with_prices(network, price)
    workload, steps = workload_asked(job)
    wanted = tokens_of(tokens) if tokens is not None else steps
    if deadline is not None:
        speed = max(speed or 0.0, speed_for(wanted, deadline))
    if speed is not None:
        objective = "cost"
    tables = _tables(job)
    train, model = (dict(tables.get(name) or {}) for name in ("train", "model"))
    workload = replace(
        workload,
        movable_bytes=0.0 if job is None or offload_of(train) != NONE else moment_bytes(train, model.get("lora")),
        lesser=() if job is None else lesser_offloads(tables, workload),
        stages=stages if stages is not None else workload.stages,
        pipelines=pipelines if pipelines is not None else workload.pipelines,
    )
    began = time.monotonic()
    made = plan(network, workload, objective=objective, time_limit=time_limit * PLANNING, seed=seed, speed=speed)
    searched = time.monotonic() - began
    workload = as_settled(workload, made)
    islands = network
    if workload.insides:
        network = room_of(network, workload, str(made.chosen.get(INSIDE_KEY, workload.insides[0])))
        workload = replace(workload, insides=(), auto_inside=False)
    result = describe(network, workload, made)
    result["objective"] = objective
    result["search_s"] = round(searched, 3)
    if workload.critical_batch is not None:
        result["tokens_that_count_per_day"] = round(result["tokens_per_day"] * workload.counts)
    if wanted is not None:
        result["finish"] = finish_of(result, wanted)
    if made.spares and objective == "step":
        result["instead"] = instead(network, workload, made, time_limit - searched, seed)
    if memory:
        result["memory"] = memory_of(tables, workload, made, islands)
    if picture is not None:
        write_picture(network, workload, made, Path(picture))
        result["picture"] = str(picture)
    return result


def describe(network: Network, workload: Workload, made: Plan) -> dict[str, Any]:
    """The JSON object of a plan, with its prediction and its published cost."""
    predicted = predict(network, workload, made)
    money = predicted.cost_per_million_tokens
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
        "chosen": made.chosen,
        "why": made.why,
        "predicted": predicted.to_dict(),
        "dtfm_total_s": published_cost(network, made),
        "tokens_per_day": round(86400 * predicted.tokens_per_second),
        "dollars_per_billion_tokens": None if money is None else round(1000 * money, 3),
    }


def finish_of(result: Mapping[str, Any], tokens: float) -> dict[str, Any]:
    """The days that a plan takes for this many tokens, and their cost in dollars (None without prices)."""
    billions, dollars = tokens / 1e9, result["dollars_per_billion_tokens"]
    return {
        "tokens": round(tokens),
        "days": round(tokens / result["predicted"]["tokens_per_second"] / 86400, 4),
        "dollars": None if dollars is None else round(dollars * billions, 6),
    }


def published_cost(network: Network, made: Plan) -> float | None:
    """DT-FM's TOTAL of the plan's groups; None where it is not defined (interleaved pipelines, one device) and for
    networks of thousands."""
    if not network.written_out or len(made.nodes) < 2 or len(made.nodes) != len(made.pipelines) * len(made.stages):
        return None
    part = network.subset(sorted(made.nodes, key=natural))
    rows = [[part.index[node] for node in row] for row in made.pipelines]
    return round(Dtfm(part, len(made.stages), len(made.pipelines)).cost_of(numpy.array(rows)).total, 4)


def write_picture(network: Network, workload: Workload, made: Plan, path: Path) -> None:
    """Writes the map and the timeline of a step of a few microbatches a pipeline."""
    estimator = Estimator(network, replace(workload, schedule=made.schedule), made.codecs)
    places, cut = indices(network, workload, made)
    few = tuple(min(count, SHOWN) for count in made.microbatches)
    trace, _ = simulate_plan(estimator, places, cut, few, made.schedule, record=True, whole=True, depths=made.in_flight)
    try:
        path.write_text(draw(network, made, predict(network, workload, made), trace), encoding="utf-8")
    except OSError as error:
        raise PlanError(f"can't write {path}: {error.strerror}") from error


def table(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Rows for a terminal: a header, then a row for each pipeline with its share and its nodes in stage order."""
    header = ("pipeline", "share", *(f"stage {i}: {stage_text(stage)}" for i, stage in enumerate(result["stages"])))
    rows = [
        (str(number), f"{share:,} microbatch{'es' if share != 1 else ''}", *row)
        for number, (row, share) in enumerate(zip(result["pipelines"], result["microbatches"], strict=True))
    ]
    return [header, *rows]


def _loaded(path: Path) -> Job:
    try:
        return load_job(path, check_codec, files=False)
    except JobError as error:
        raise PlanError(str(error)) from error


def _workload_of(job: Job) -> Workload:
    vocabulary = None
    if job.model.vocabulary is None and job.model.family and job.data.tokenizer != "bytes":
        try:
            vocabulary = load_tokenizer(job.data.tokenizer).vocabulary
        except JobError as error:
            raise PlanError(str(error)) from error
    if job.activations.forward == AUTO:
        job = with_forward(job, expected(job.run.epochs))
    return workload_of(job.model_dump(), vocabulary=vocabulary)


def _tables(job: str | Path | Mapping[str, Any] | None) -> Mapping[str, Any]:
    if job is None or isinstance(job, Mapping):
        return job or {}
    return _loaded(Path(job)).model_dump()


def workload_asked(job: str | Path | Mapping[str, Any] | None) -> tuple[Workload, float | None]:
    """(the workload of a job, the tokens of its steps or None). Without a job: the workload of the published model.

    Of a job file's model only the shape is used. PlanError: a run would refuse the file (its data need not exist), or
    the model is built by code.
    """
    if job is None:
        choices = (CodecChoice("none", 16.0, 16.0), CodecChoice("int8", bits_of("int8"), 16.0, INT8_SECONDS))
        return replace(paper_workload(schedule="1f1b"), codecs=choices), None  # GPipe would keep the whole batch
    if isinstance(job, Mapping):
        workload, steps = workload_of(job), dict(job.get("run") or {}).get("steps")
    else:
        loaded = _loaded(Path(job))
        check_as_a_start(loaded)
        workload, steps = _workload_of(loaded), loaded.run.steps
    return workload, float(steps) * workload.batch * workload.tokens_per_sample if steps else None
