"""Regions by measured latency, and rounds in two levels where they are faster."""

import numpy
import pytest

from farflung.job.schema import Updates
from farflung.node.rounds.arithmetic.ways.phased import phases_of
from farflung.node.state.sections.section import Layout
from farflung.node.state.stage_state import round_plan
from farflung.scheduler import Device, Layer, Network, Plan, PlanError, Workload, plan, predict
from farflung.scheduler.networks.regions import region_numbers
from farflung.scheduler.timing.rounds import per_bit_sent, publisher_fractions, round_seconds, site_seconds
from farflung.scheduler.workloads.codecs import SUMMED

NAMES = ("o0", "o1", "o2", "t0", "t1", "t2")
LAYERS = (Layer("all", 10_000_000, 1e9, 1000),)


def cluster(far=0.05, wan=1e8, lan=1e10):
    """Two regions of three, whose names nobody told."""
    same = numpy.array([[a[0] == b[0] for b in NAMES] for a in NAMES])
    return Network([Device(name) for name in NAMES], numpy.where(same, 0.001, far), numpy.where(same, lan, wan))


def job(pattern, **changes):
    values = {"layers": LAYERS, "batch": 6, "stages": 1, "pipelines": 6, "update_bits": 32.0}
    return Workload(**(values | {"pattern": pattern} | changes))


def test_regions_are_chains_of_near_links_or_what_a_cluster_file_says():
    assert region_numbers(cluster()).tolist() == [0, 0, 0, 1, 1, 1]
    assert region_numbers(cluster(far=0.004)).tolist() == [0] * 6
    chain = cluster()
    chain.latency[:3, :3] = 0.02
    chain.latency[0, 1] = chain.latency[2, 1] = 0.003  # one direction will do
    numpy.fill_diagonal(chain.latency, 0)
    assert region_numbers(chain).tolist() == [0, 0, 0, 1, 1, 1]
    told = Network([Device(name, region="here") for name in NAMES], cluster().latency, cluster().bandwidth)
    assert region_numbers(told).tolist() == [0] * 6


def test_a_round_in_two_levels_crosses_a_slow_border_with_a_third_of_the_bytes():
    network, group = cluster(lan=1e12, far=0.0), numpy.arange(6)
    sent, regions = per_bit_sent(network), region_numbers(cluster())
    flat = round_seconds(network, sent, group, 1e9, "publishers", None, regions)
    levels = round_seconds(network, sent, group, 1e9, "two_level", None, regions)
    assert flat / levels == pytest.approx(3, rel=0.02)
    alone = numpy.arange(6)
    assert round_seconds(network, sent, group, 1e9, "two_level", None, alone) == pytest.approx(flat, rel=0.02)
    assert round_seconds(network, sent, group, 1e9, "two_level") == pytest.approx(flat)
    sites = Network(
        [Device(name, region=name[0]) for name in NAMES],
        network.latency,
        network.bandwidth,
        site_upload={"o": 1e9},
    )
    places = group[:, None]
    once = [site_seconds(sites, places, numpy.array([1e9]), p, regions) for p in ("publishers", "two_level")]
    assert once == pytest.approx([3.0, 1.0])


def test_the_plan_goes_in_two_levels_where_that_is_faster():
    far = plan(cluster(), job("auto"), time_limit=1.0)
    assert sorted(map(sorted, far.regions)) == [["o0", "o1", "o2"], ["t0", "t1", "t2"]]
    assert "rounds in two levels over 2 regions" in far.why
    assert Plan.from_json(far.to_json()) == far
    flat = plan(cluster(), job("publishers"), time_limit=1.0)
    assert flat.regions == ()
    assert predict(cluster(), job("auto"), far).round_s < 0.6 * predict(cluster(), job("auto"), flat).round_s
    assert plan(cluster(far=0.004), job("auto"), time_limit=1.0).regions == ()
    # Where latency is all that a round takes, four hops instead of two are no gain; who asks for them gets them.
    thin = {"update_bits": 1e-4}
    assert plan(cluster(far=0.3), job("auto", **thin), time_limit=1.0).regions == ()
    assert plan(cluster(far=0.3), job("two_level", **thin), time_limit=1.0).regions
    assert plan(cluster(), job("auto"), time_limit=1.0, current=far) is far
    assert plan(cluster(), job("auto"), time_limit=1.0, current=flat).regions
    fractions = publisher_fractions(cluster(), per_bit_sent(cluster()), numpy.arange(6))
    assert fractions == pytest.approx((1 / 6,) * 6, abs=1e-5)


def test_regions_that_are_none_of_a_plans_nodes_are_refused():
    with pytest.raises(PlanError, match="each node that trains once"):
        Plan((("a",), ("b",)), ((0, 1),), (1, 1), regions=(("a", "a"), ("b",)))


def test_what_is_summed_in_phases():
    from farflung import compress

    assert {name for name in compress.names() if phases_of(name)} == SUMMED


@pytest.mark.parametrize("cities", [1, 4, 60, 130])
def test_members_of_a_large_group_exchange_with_a_few(cities):
    """Whoever is where: nobody of 130 has more than half as many connections as before, nor is anybody left out."""
    count, random = 130, numpy.random.default_rng(cities)
    city = random.integers(0, cities, count)
    latency = numpy.where(city[:, None] == city[None, :], 0.001, 0.05)
    network = Network([Device(f"n{at}") for at in range(count)], latency, numpy.full((count, count), 1e9))
    made = plan(network, job("auto", pipelines=count, batch=count), time_limit=1.0)
    assert made.regions and sorted(name for region in made.regions for name in region) == sorted(network.names)
    layout = Layout.of("stage-0", {"w": (count * 1024,)})
    found = round_plan(made, layout, Updates(block=256))
    talks = {name: set() for name in found.members}
    for part in found.parts:
        for member, taker in zip(found.members, part.takers, strict=True):
            talks[member].add(taker)
            talks[taker] |= {member, part.publisher}
            talks[part.publisher].add(taker)
    assert found.pattern == "two_level"
    assert max(len(others - {name}) for name, others in talks.items()) <= count / 2
    small = plan(cluster(far=0.004), job("auto"), time_limit=1.0)
    assert small.regions == ()
