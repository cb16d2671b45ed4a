"""Rounds that begin within the last backward pass: what a plan's step counts of them, and where."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy
import pytest

from farflung.benchmarks.early_rounds import RESULTS, USUAL
from farflung.job.schema import Updates
from farflung.node.state import buckets
from farflung.node.state.sections.cut import SECTIONS
from farflung.node.state.sections.section import Layout
from farflung.node.state.stage_state import round_plan
from farflung.scheduler import Device, Layer, Network, Plan, Workload, predict
from farflung.scheduler.search.annealing import Searcher
from farflung.scheduler.search.swaps import anneal
from farflung.scheduler.timing.candidate import Candidate
from farflung.scheduler.timing.early import complete_at, nothing_hidden
from farflung.scheduler.timing.estimate import Cut, Estimator
from farflung.scheduler.timing.seconds import candidate_seconds
from farflung.scheduler.workloads.early import LEAST, MOST, PIECES, EarlyRounds, early_rounds_of
from farflung.scheduler.workloads.jobs import workload_of
from farflung.scheduler.workloads.layers import trained

JOB = {
    "model": {"family": "gpt2", "layers": 6, "width": 512, "heads": 8, "context": 128},
    "train": {"batch": 16, "microbatch": 4},
    "parallel": {"pipelines": 2, "stages": 1},
}


def network(count: int, rate: float = 1e9, latency: float = 0.005, **device: object) -> Network:
    devices = [Device(f"d{at}", tflops=1.0, upload=rate, download=rate, **device) for at in range(count)]  # type: ignore[arg-type]
    delays = numpy.full((count, count), latency)
    numpy.fill_diagonal(delays, 0.0)
    return Network(devices, delays, numpy.full((count, count), rate))


def stages_of_one(members: int) -> Plan:
    rows = tuple((f"d{at}",) for at in range(members))
    return Plan(pipelines=rows, stages=((0, 0),), microbatches=(1,) * members)


def test_the_formula_holds_on_a_computed_clock() -> None:
    """benchmarks/early_rounds.py has the runtime's state machine: a step is at most 4 % longer than it is predicted."""
    rows = json.loads(RESULTS.read_text())["rows"]
    assert len(rows) == 12
    for row in rows:
        members = row["members"]
        layer = Layer("all", USUAL.elements, 1e12 / 3, 1)  # with its backward pass 1 s
        workload = Workload(
            (layer,),
            members,
            mode="gradient",
            pattern="auto",
            update_bits=8.0 * row["element_bytes"],
            early=EarlyRounds(),
        )
        found = predict(network(members, row["rate_mbit"] * 1e6, USUAL.latency_s), workload, stages_of_one(members))
        assert 0.96 * row["early_s"] <= found.step_s <= row["early_s"] * 1.01, row


def test_gradients_at_an_even_rate_have_a_formula_of_one_line() -> None:
    net, n = network(2), 12
    workload = Workload((Layer("all", USUAL.elements, 1e12 / 3, 1),), 2, mode="gradient", early=EarlyRounds())
    hides = Estimator(net, workload).hiding(numpy.array([[0], [1]]), Cut(workload, ((0, 0),)), latencies=False)
    for took in (0.01, 0.3, 2 / 3, 2.0):
        exposed = max(took - 2 / 3 * (1 - 1 / n), took / n)
        assert hides.exposed(numpy.array([took]))[0] == pytest.approx(exposed)


def test_layers_are_complete_when_the_pass_has_reached_them() -> None:
    assert complete_at([1, 1, 2], [4, 2, 2], 4) == pytest.approx([1 / 8, 2 / 8, 4 / 8, 1])
    assert complete_at([2, 1, 1], [0, 5, 5], 4) == pytest.approx([1 / 2, 1, 1, 1])  # the embedding comes last, at once
    assert complete_at([1, 1], [0, 0], 2) == pytest.approx([1, 1])


@pytest.mark.parametrize("members", [2, 3, 5, 16])
@pytest.mark.parametrize("elements", [70_000, 2_000_000, 2_200_000, 9_000_000, 40_000_000])
@pytest.mark.parametrize("block", [16384, 65536])
def test_the_buckets_are_those_of_nodes(members: int, elements: int, block: int) -> None:
    assert (LEAST, MOST, PIECES) == (buckets.LEAST, buckets.MOST, SECTIONS)
    publishers = 1 if members == 2 else members
    layout = Layout.of("stage-0", {"all": (elements,)})
    found = buckets.buckets(layout.blocks(block), publishers)
    assert EarlyRounds(block).buckets(elements, publishers) == len(found)
    parts = round_plan(stages_of_one(members), layout, Updates(mode="gradient", block=block)).parts
    assert len(parts) >= len(found)
    if members == 2:
        assert len(parts) == len(found)


@pytest.mark.parametrize(
    "tables",
    [
        {"updates": {"mode": "delta"}},
        {"updates": {"codec": "powersgd:rank=2"}},
        {"updates": {"robust": "centered:tau=1"}},
        {"train": {"precision": "fp16"}},
        {"train": {"optimizer": "onebit_adam"}},
        {"model": {"parameters": 100}},
    ],
    ids=str,
)
def test_what_nodes_offer_after_the_pass_is_not_hidden(tables: dict[str, dict[str, object]]) -> None:
    assert early_rounds_of(JOB) == EarlyRounds(65536, 1)
    assert early_rounds_of({**JOB, "parallel": {"inside": "fsdp"}}) == EarlyRounds(65536, 8)
    assert early_rounds_of({**JOB, "updates": {"codec": "int8"}}) is not None
    assert early_rounds_of({**JOB, **tables}) is None


def test_an_island_makes_its_group_late_and_rare_rounds_are() -> None:
    workload = workload_of(JOB)
    places, layers = numpy.array([[0], [1]]), len(workload.layers)
    for net, work in (
        (network(2, ranks=2), workload),
        (network(2), replace(workload, every=20, mode="delta")),
        (network(2), replace(workload, early=None)),
        (network(2), workload_of({**JOB, "model": {**JOB["model"], "layers": 1, "width": 64}})),
    ):
        cut = Cut(work, ((0, len(work.layers) - 1),))
        hides = Estimator(net, work).hiding(places, cut)
        rounds = numpy.array([3.0])
        assert hides.exposed(rounds).tolist() == nothing_hidden(1).exposed(rounds).tolist() == [3.0]
    early = Estimator(network(2), workload).hiding(places, Cut(workload, ((0, layers - 1),)))
    assert early.exposed(numpy.array([3.0]))[0] < 3.0


@pytest.mark.parametrize(("members", "tie", "stages"), [(2, False, 1), (4, True, 1), (3, True, 2), (3, False, 2)])
@pytest.mark.parametrize("rate", [1e8, 1e10])
def test_the_estimate_the_simulation_and_the_prediction_agree(
    members: int, tie: bool, stages: int, rate: float
) -> None:
    job = {
        **JOB,
        "model": {**JOB["model"], "tie": tie},
        "train": {"batch": 4 * members, "microbatch": 1},
        "parallel": {"pipelines": members, "stages": stages},
    }
    workload, net = workload_of(job), network(members * stages, rate, 0.0)
    last = len(workload.layers) - 1
    ranges = ((0, last),) if stages == 1 else ((0, last // 2), (last // 2 + 1, last))
    places = numpy.arange(members * stages).reshape(members, stages)
    seconds = {}
    for when, work in (("early", workload), ("late", replace(workload, early=None))):
        estimator, cut = Estimator(net, work), Cut(work, ranges)
        estimate = estimator.step(places, cut, (4,) * members)
        found = Candidate(places, (), cut, (4,) * members, estimate, "here", in_flight=())
        simulated = candidate_seconds(estimator, found)
        rows = tuple(tuple(f"d{at}" for at in row) for row in places)
        plan = Plan(pipelines=rows, stages=ranges, microbatches=(4,) * members)
        told = predict(net, work, plan)
        assert told.step_s == pytest.approx(simulated, rel=1e-5)
        if stages == 1:
            assert estimate.seconds == pytest.approx(simulated, rel=1e-5)
        waits = told.seconds["waiting for rounds"]
        assert told.seconds["slowest pipeline"] + waits == pytest.approx(told.step_s)
        assert waits <= told.seconds["slowest round"] * (1 + 1e-9)
        seconds[when] = told.step_s
    assert seconds["early"] < seconds["late"]


def test_a_round_without_a_link_stays_endless() -> None:
    for width in (64, 512):
        work = workload_of({**JOB, "model": {**JOB["model"], "width": width}})
        hides = Estimator(network(2), work).hiding(numpy.array([[0], [1]]), Cut(work, ((0, 7),)))
        assert hides.exposed(numpy.array([numpy.inf])).tolist() == [numpy.inf]


def test_latencies_and_shared_matrices_are_never_hidden() -> None:
    far = network(2, 1e10, latency=0.3)
    workload = replace(workload_of(JOB), tied=False)
    places, cut = numpy.array([[0], [1]]), Cut(workload, ((0, 7),))
    estimator = Estimator(far, workload)
    assert estimator.hiding(places, cut).exposed(estimator.rounds(places, cut))[0] >= 0.3


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_shared_matrix_counts_once_where_one_node_has_both_of_its_layers(chunks) -> None:
    work = replace(workload_of(JOB), tied=True)
    last, edges = len(work.layers) - 1, (0, len(work.layers) // 2, len(work.layers))
    ranges = ((0, last),) if chunks == 1 else tuple((a, b - 1) for a, b in pairwise(edges))
    cut = Cut(work, ranges, chunks)
    assert cut.parameters.tolist() == [trained(work, 0, last)] and cut.tied == 0
    assert sum(cut.passed[0][0]) <= cut.parameters[0] and cut.update[0] == cut.parameters[0] * work.update_bits
    two = Cut(work, tuple((a, b - 1) for a, b in pairwise(edges)))
    both = min(work.layers[0].parameters, work.layers[-1].parameters)
    assert two.parameters.sum() == trained(work, 0, last) + both and two.tied == both * work.update_bits > 0


def test_both_searches_count_alike() -> None:
    random = numpy.random.default_rng(4)
    devices = [Device(f"d{at}", tflops=10.0) for at in range(15)]
    net = Network(devices, random.uniform(0, 0.05, (15, 15)), 10 ** random.uniform(7, 9, (15, 15)))
    layers = tuple(Layer(f"l{at}", 3_000_000, 1e11, 100_000) for at in range(8))
    workload = Workload(layers, 24, mode="gradient", update_bits=4.0, early=EarlyRounds())
    cut = Cut(workload, ((0, 1), (2, 3), (4, 5), (6, 7)))
    one = Searcher(Estimator(net, workload), cut, numpy.arange(12).reshape(3, 4), [12, 13, 14])
    assert one.hiding.hidden.max() > 0
    before = one.value
    anneal(one, 1500, 0.02, 1e-5, 1)
    assert one.value < before
    left, right = numpy.repeat(numpy.arange(12), 15), numpy.tile(numpy.arange(15), 12)
    told = one.values_of_swaps(left[left < right], right[left < right])
    anneal(one, 1500, 1e-9, 1e-9, 1)
    assert one.value <= float(told.min()) * (1 + 1e-9)
