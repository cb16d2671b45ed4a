"""Which codec and overlap a plan chooses for updates: the least lossy one that hides behind compute."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from farflung import compress
from farflung.scheduler import Device, Layer, Network, Plan, Workload, plan, predict
from farflung.scheduler.workloads.codecs import bits_of
from farflung.scheduler.workloads.early import EarlyRounds
from farflung.scheduler.workloads.ladder import intervals, ladder, workload_fields
from farflung.scheduler.workloads.losses import loss_of

EDEN = "eden:bits=1,biased=true"
LAYERS = tuple(Layer(f"block {index}", 3_000_000, 1e9, 100_000) for index in range(8))


def job(codec="auto", overlap="auto", interval=1, mode="delta", stages=1, pipelines=2, fragments=1) -> Workload:
    values = {"layers": LAYERS, "batch": 8, "stages": stages, "pipelines": pipelines, "mode": mode, "pattern": "auto"}
    return Workload(**values, **workload_fields(mode, codec, overlap, interval, fragments))


def network(mbits, latency=0.025, count=2, tflops=0.1) -> Network:
    """With tflops = 0.1 a step of two pipelines computes 0.96 s."""
    names = [f"n{index}" for index in range(count)]
    pairs = [(one, two) for one in names for two in names if one != two]
    rates = (
        dict.fromkeys(pairs, mbits * 1e6)
        if not isinstance(mbits, dict)
        else {
            pair: 1e6 * next(value for key, value in mbits.items() if set(key) <= set(pair) or key == "")
            for pair in pairs
        }
    )
    return Network.measured([Device(name, tflops=tflops) for name in names], dict.fromkeys(pairs, latency), rates)


@pytest.mark.parametrize(("mode", "role"), [("delta", "update"), ("gradient", "gradient")])
@pytest.mark.parametrize("interval", [1, 2, 30, 500])
def test_a_ladder_is_of_codecs_that_may_be_used_and_each_takes_less_than_the_one_before(mode, role, interval):
    rungs = ladder(mode, interval)
    assert ladder(mode, interval, rarer=True) == rungs[: len(ladder(mode, interval, rarer=True))]
    assert [str(compress.check(rung, role)) for rung in rungs]
    bits = [bits_of(rung) for rung in rungs]
    assert all(one > 1.5 * two for one, two in pairwise(bits)) and bits[0] == 32


def test_the_slower_the_link_the_stronger_the_codec():
    chosen = [plan(network(rate), job(), seed=1) for rate in (20_000, 2_000, 1_000, 400, 100, 20, 0.5)]
    rungs = ladder("delta", 1)
    places = [rungs.index(made.codecs["updates"]) for made in chosen]
    assert places == sorted(places) and places[0] == 0 and places[-1] == len(rungs) - 1
    assert len(set(places)) >= 5
    assert [made.overlap for made in chosen] == [1] * 7  # a round of 25 ms and more is never for nothing
    for rate, made in zip((20_000, 2_000, 1_000, 400, 100, 20), chosen, strict=False):
        told = predict(network(rate), job(), made)
        assert told.round_s <= 0.8 * told.compute_s  # it fits
        assert told.step_s == pytest.approx(told.compute_s)  # and so it costs nothing
        rung = rungs.index(made.codecs["updates"])
        if rung:
            gentler = replace(made, codecs={"updates": rungs[rung - 1]})
            assert predict(network(rate), job(), gentler).round_s > 0.8 * told.compute_s
    assert "any codec of the ladder" in chosen[-1].why and "any codec" not in chosen[-2].why
    assert f"updates go as {rungs[places[3]]} with overlap 1" in chosen[3].why
    for made in chosen:  # what it costs in loss is said where it was measured, and where that is from
        loss = loss_of("delta", 1, made.codecs["updates"])
        assert ("in loss it cost" in made.why) == (loss is not None)
        assert loss is None or f"{loss.words} where it was measured ({loss.source})" in made.why


def test_a_round_that_costs_next_to_nothing_is_not_late():
    made = plan(network(100_000, latency=1e-4), job())
    assert (made.codecs["updates"], made.overlap) == ("none", 0)
    assert plan(network(100_000, latency=1e-4), job(overlap=1)).overlap == 1
    alone = plan(network(100, count=1), job(pipelines=1))
    assert (alone.codecs["updates"], alone.overlap) == ("none", 0) and "updates" not in alone.why


def test_rare_rounds_are_late_by_no_more_than_they_must():
    for rate, codec, overlap in ((2_000, "none", 1), (500, "none", 3), (100, "bf16", 6), (30, "int4", 5)):
        made = plan(network(rate), job(interval=25))
        assert (made.codecs["updates"], made.overlap) == (codec, overlap), made.why
        took = predict(network(rate), job(interval=25), made)
        assert took.round_s <= 0.8 * made.overlap * took.compute_s
    fixed = plan(network(100), job(codec="int8", interval=25))  # the job's codec: the overlap alone is chosen
    assert fixed.codecs["updates"] == "int8" and 1 < fixed.overlap < 6
    given = plan(network(100), job(overlap=2, interval=25))
    assert given.overlap == 2 and bits_of(given.codecs["updates"]) < 16


def test_nothing_is_lost_for_latency_that_no_codec_shortens():
    """A round of 50 ms that nothing hides is late with every codec: the first that waits hardly longer stays."""
    work, rungs, found = job(overlap=0), ladder("delta", 1), []
    for rate in (1e6, 10_000, 100):
        made = plan(network(rate), work)
        found.append(rungs.index(made.codecs["updates"]))
        least, own = (
            predict(network(rate), work, replace(made, codecs={"updates": rungs[at]})) for at in (-1, found[-1])
        )
        assert own.step_s <= least.step_s + 0.021 * least.compute_s
        if found[-1]:
            gentler = predict(network(rate), work, replace(made, codecs={"updates": rungs[found[-1] - 1]}))
            assert gentler.step_s > least.step_s + 0.019 * least.compute_s
    assert found[0] == 0 < found[1] < rungs.index(EDEN) < found[2]


def test_gradients_wait_and_go_dense():
    slow, quick = (
        plan(network(100), job(mode="gradient", overlap=0)),
        plan(network(1e6, 1e-5), job(mode="gradient", overlap=0)),
    )
    assert (slow.codecs["updates"], slow.overlap) == ("int8", 0) and "nothing hides it" in slow.why
    assert quick.codecs["updates"] == "none"


def test_a_round_within_the_backward_pass_counts_with_what_the_step_waits_for_it():
    """96 MB take 77 ms at 10 Gbit/s, far more than nothing, but the pass of 160 ms hides nearly all of it."""
    after = job(mode="gradient", overlap=0)
    net, within = network(10_000, 1e-4), replace(after, early=EarlyRounds())
    late, early = plan(net, after), plan(net, within)
    assert late.codecs["updates"] == "bf16" and "nothing hides it" in late.why
    assert early.codecs["updates"] == "none" and "s hidden by the backward pass" in early.why
    told = predict(net, within, early)
    assert told.round_s > 0.02 * told.compute_s and told.step_s < 1.02 * told.compute_s
    assert plan(net, within, current=early) is early
    slow = plan(network(100, 1e-4), within)
    assert slow.codecs["updates"] == "int8" and "all but" in slow.why, "a pass hides no more than its own length"


def test_every_group_has_the_codec_of_its_own_slowest_link():
    rates = {("n0", "n1"): 4_000, ("n0", "n2"): 4_000, ("n1", "n3"): 50, "": 4_000}
    wanted = job(stages=2)
    made = Plan((("n0", "n1"), ("n2", "n3")), ((0, 3), (4, 7)), (4, 4))
    net = network(rates, count=4)
    made = plan(net, wanted, current=replace(made, why="by hand"))
    codecs = {made.update_codec(stage) for stage in (0, 1)}
    assert len(codecs) == 2 and set(made.codecs) == {"updates of stage 0", "updates of stage 1"}
    told = predict(net, wanted, made)
    assert told.step_s == pytest.approx(told.compute_s)
    assert Plan.from_json(made.to_json()) == made


def test_the_choice_stays_while_it_hides_its_rounds():
    first = plan(network(400), job())
    assert plan(network(410), job(), current=first) is first  # a link that is measured again
    worse = plan(network(100), job(), current=first)
    assert bits_of(worse.codecs["updates"]) < bits_of(first.codecs["updates"]) and worse.pipelines == first.pipelines
    assert not worse.same_placement(first)
    better = plan(network(4_000), job(), current=worse)
    assert bits_of(better.codecs["updates"]) > bits_of(first.codecs["updates"])
    # Steps turn out to compute four times as long: there is room for four times the bytes.
    slower = plan(network(400), replace(job(), reached=0.25), current=first)
    assert bits_of(slower.codecs["updates"]) > 1.9 * bits_of(first.codecs["updates"])
    named = plan(network(400), job(codec="int8", overlap=1), current=first)
    assert named.overlap is None and not named.codecs


def test_fragments_share_a_round():
    whole, pieces = workload_fields("delta", "auto", "auto", 32, 1), workload_fields("delta", "auto", "auto", 4, 8)
    assert pieces["update_bits"] == pytest.approx(whole["update_bits"] / 8) and math.isclose(pieces["every"], 4)
    assert [name for name, _ in pieces["update_ladder"]] == [name for name, _ in whole["update_ladder"]]
    assert not workload_fields("delta", "int8", 1, 1, 1).get("update_ladder")


def test_a_slow_link_gets_one_bit_of_all_values_and_is_told_what_that_cost():
    """In fifths, as `job init` writes it: 24 M weights send 4.9 Mbit a round and step of 0.96 s."""
    made = plan(network(7), job(overlap=1, interval=1, fragments=5))
    assert made.codecs == {"updates": EDEN}
    loss = loss_of("delta", 5, EDEN)
    assert f"in loss it cost {loss.words} where it was measured ({loss.source})" in made.why
    told = predict(network(7), job(overlap=1, interval=1, fragments=5), made)
    assert told.step_s == pytest.approx(told.compute_s)
    often = plan(network(40), job(overlap=1, interval=1))  # one bit in every step is another setting
    assert often.codecs == {"updates": EDEN}
    assert ("in loss it cost" in often.why) == (loss_of("delta", 1, EDEN) is not None)


def test_where_rounds_may_be_rarer_one_bit_comes_before_small_parts_of_the_values():
    steps = {one.every: [name for name, _ in one.update_ladder] for one in intervals("delta", "auto", "auto")}
    assert steps[1][-1] == "cocktail:random=0.3,top=0.3,bits=4"
    assert {steps[every][-1] for every in (2, 5, 10, 20, 50)} == {EDEN} and EDEN in steps[100][:-1]
    taken = [bits_of(rungs[-1]) / every for every, rungs in steps.items()]
    assert taken == sorted(taken, reverse=True)
