"""Networks that are not written out answer as those that are, and are planned in neighbourhoods."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy
import pytest

from farflung.scheduler import Device, Layer, Network, Workload, plan, predict
from farflung.scheduler.networks import network as networks
from farflung.scheduler.networks.blocks import Blocks
from farflung.scheduler.planning import finish
from farflung.scheduler.search import candidates, many
from farflung.scheduler.search.annealing import Searcher
from farflung.scheduler.search.shapes import candidate
from farflung.scheduler.timing import rounds
from farflung.scheduler.timing.candidate import Candidate
from farflung.scheduler.timing.estimate import Cut, Estimator
from farflung.scheduler.workloads.workload import CodecChoice

COUNT = 60
CODECS = (CodecChoice("none", 32.0, 32.0), CodecChoice("int8", 8.0, 8.0, 1e-9))


def both(monkeypatch: pytest.MonkeyPatch, lines: bool) -> tuple[Network, Network]:
    """The same network of three regions, the last with one device: written out, and as tables."""
    random = numpy.random.default_rng(3)
    home = numpy.array([at % 2 for at in range(COUNT - 1)] + [2])
    devices = [
        Device(
            f"d{at}",
            f"r{home[at]}",
            tflops=float(random.uniform(10, 40)),
            memory_bytes=float(random.choice([3e8, 2e9])),
            upload=float(random.uniform(2e7, 2e8)) if lines else None,
            download=3e8 if lines else None,
        )
        for at in range(COUNT)
    ]
    latency, bandwidth = random.uniform(0.001, 0.1, (3, 3)), random.uniform(1e8, 1e9, (3, 3))
    tables = Blocks(home, latency, 0.0), Blocks(home, bandwidth, math.inf)
    written = Network(devices, *tables)
    monkeypatch.setattr(networks, "WRITTEN_OUT", 40)
    return written, Network(devices, *tables)


def job(**wish: object) -> Workload:
    layers = tuple(Layer(f"l{at}", 2_000_000, 2e11, 100_000) for at in range(8))
    return Workload(layers, batch=4 * COUNT, **{"update_bits": 0.5, "overlap": 1, **wish})


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize("codecs", [(), CODECS])
def test_tables_answer_as_matrices_do(
    lines: bool, codecs: tuple[CodecChoice, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    written, tables = both(monkeypatch, lines)
    assert written.written_out and not tables.written_out
    everything = numpy.ix_(numpy.arange(COUNT), numpy.arange(COUNT))
    for one, other in ((written.latency, tables.latency), (written.bandwidth, tables.bandwidth)):
        assert other[everything].tolist() == one.tolist()
    assert tables.rate[everything].tolist() == written.rate.tolist()
    told = {"r0>r1": "none"} if codecs else None
    a, b = (Estimator(network, job(codecs=codecs), told) for network in (written, tables))
    for name in ("per_bit", "trip_latency", "sent", "forward_bits", "backward_bits", "coding"):
        assert getattr(b, name)[everything] == pytest.approx(getattr(a, name)), name
    places = numpy.arange(COUNT).reshape(20, 3)
    cut = Cut(a.workload, ((0, 2), (3, 5), (6, 7)))
    share = (12,) * 20
    assert b.step(places, cut, share).seconds == pytest.approx(a.step(places, cut, share).seconds)
    assert networks.components(tables) == networks.components(written) == [list(range(COUNT))]
    few = tables.subset([f"d{at}" for at in range(7, 19)])
    assert few.written_out and few.bandwidth.tolist() == written.bandwidth[7:19, 7:19].tolist()


def test_regions_without_a_link_are_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "WRITTEN_OUT", 2)
    home, rates = numpy.array([0, 1, 1, 2, 2]), numpy.zeros((3, 3))
    rates[0, 1] = rates[1, 0] = rates[2, 2] = 1e8
    devices = [Device(f"d{at}", f"r{home[at]}") for at in range(5)]
    network = Network(devices, Blocks(home, rates * 0, 0.0), Blocks(home, rates, math.inf))
    assert networks.components(network) == [[0, 1, 2], [3, 4]]
    rates[2, 2] = 0.0
    network = Network(devices, Blocks(home, rates * 0, 0.0), Blocks(home, rates, math.inf))
    assert networks.components(network) == [[0, 1, 2], [3], [4]]


@pytest.mark.parametrize("pattern", ["publishers", "auto", "two_level"])
def test_rounds_of_large_groups_are_those_of_all_pairs(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, _ = both(monkeypatch, True)
    sent, group = rounds.per_bit_sent(network), numpy.random.default_rng(0).permutation(COUNT)[:40]
    regions = numpy.array([at % 5 for at in range(COUNT)])
    parts = rounds.publisher_fractions(network, sent, group)
    for fractions in (None, numpy.array(parts)):
        whole = rounds.round_seconds(network, sent, group, 1e8, pattern, fractions, regions)
        with monkeypatch.context() as patch:
            patch.setattr(rounds, "AT_ONCE", 7)
            patch.setattr(rounds, "SENDERS", 7)
            assert rounds.round_seconds(network, sent, group, 1e8, pattern, fractions, regions) == pytest.approx(whole)
            assert rounds.publisher_fractions(network, sent, group) == pytest.approx(parts)


def test_neighbourhoods_make_one_plan_that_fits_and_is_near_the_plan_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    written, tables = both(monkeypatch, True)
    whole = predict(written, job(), plan(written, job(), time_limit=0.5)).step_s
    monkeypatch.setattr(candidates, "WRITTEN_OUT", 40)
    monkeypatch.setattr(many, "SAMPLE", 16)
    monkeypatch.setattr(many, "NEIGHBOURHOOD", 20)
    made = plan(tables, job(), time_limit=0.5)
    assert set(made.nodes) | set(made.spares) == set(tables.names)
    assert sum(made.microbatches) == job().microbatches
    assert predict(tables, job(), made).step_s <= 1.5 * whole  # either may be cut short
    assert predict(tables, job(), made).step_s == pytest.approx(predict(written, job(), made).step_s)
    wished = plan(tables, job(stages=4, pipelines=3), time_limit=0.5)
    assert (len(wished.pipelines), len(wished.stages)) == (3, 4)


@pytest.mark.parametrize("sampled", [1, 2])
def test_the_number_of_stages_is_tried_on_more_than_a_sample(sampled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample's number may leave out devices for want of memory: with one stage half of these."""
    _, tables = both(monkeypatch, True)
    monkeypatch.setattr(many, "SAMPLE", 16)
    monkeypatch.setattr(many, "NEIGHBOURHOOD", 20)
    layers = tuple(replace(one, flops=5e12) for one in job().layers)
    slow = replace(job(optimizer_bytes=30, activation_bytes=1), layers=layers)
    estimator = Estimator(tables, slow)

    def first(part: Network, less: Workload) -> Candidate:
        edges = [round(at * 8 / sampled) for at in range(sampled + 1)]
        cut = Cut(less, tuple((a, b - 1) for a, b in pairwise(edges)))
        found = candidate(Estimator(part, less), numpy.arange(sampled)[None], [], cut, "")
        assert found is not None
        return found

    def shortest(cut: Cut | None) -> Candidate:
        made = many.best_of_many(estimator, first, 0, lambda: False, cut)
        return min(made, key=lambda found: found.seconds)

    cut = many._common_cut(tables, estimator.workload, sampled)
    assert cut is not None
    chosen, as_sampled = shortest(None), shortest(cut)
    assert chosen.seconds <= as_sampled.seconds * 1.05
    if sampled == 1:
        assert chosen.seconds < 0.8 * as_sampled.seconds and len(chosen.spare) < len(as_sampled.spare)


def test_spares_of_many_are_told_what_a_step_takes_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a matrix of all links: what the search's own value says with one, and who is too small says so."""
    written, tables = both(monkeypatch, True)
    order = sorted(range(COUNT), key=lambda at: -written.devices[at].memory_bytes)
    places, spare = numpy.array(order[:20]).reshape(10, 2), order[20:]
    told = []
    for network in (written, tables):
        estimator = Estimator(network, job(optimizer_bytes=60))
        best = candidate(estimator, places, spare, Cut(estimator.workload, ((0, 3), (4, 7))), "")
        assert best is not None
        told.append((finish.why_spare(estimator, best, 100.0), estimator, best))
    (reasons, estimator, best), (of_many, _, _) = told
    small = [at for at in spare if written.devices[at].memory_bytes == 3e8]
    assert small and all(of_many[f"d{at}"] == reasons[f"d{at}"] for at in small)
    assert all("300 MB of memory: a stage of this plan needs" in reasons[f"d{at}"] for at in small)
    searcher, flat = Searcher(estimator, best.cut, places, spare), numpy.arange(places.size)
    for position, device in enumerate(spare[:5]):
        values = finish._with_spare(estimator, best, flat, device, finish._least_memory(estimator, best))
        exact = searcher.values_of_swaps(flat, numpy.full(len(flat), places.size + position)) / searcher.value
        assert values.min() == pytest.approx(exact.min(), rel=0.05)
