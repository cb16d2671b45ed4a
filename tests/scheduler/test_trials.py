"""Trials of microbatches and recompute: which are made, in which steps, and what follows from what they measure."""

import json
import random
import re
from dataclasses import replace

import pytest

from farflung.scheduler import Device, Network, Plan, PlanError, plan
from farflung.scheduler.after_trials import FASTER, Found, decided, fastest, found_of, with_trial, without
from farflung.scheduler.planning.choose_trials import MOST_BROKEN, held, with_trials
from farflung.scheduler.trials import CYCLES, Trial, Tuning
from farflung.scheduler.workloads import jobs

TRIALS = (Trial(4, False), Trial(2, False), Trial(8, False), Trial(4, True))
CHOSEN = {"train.microbatch": 4, "train.recompute": False}
PLAN = Plan((("a", "b"), ("c", "d")), ((0, 1), (2, 3)), (2, 4), chosen=CHOSEN, tuning=Tuning(TRIALS, "16 is too large"))
JOB = {
    "model": {"family": "llama", "layers": 4, "width": 512, "heads": 8, "context": 256},
    "train": {"batch": 16, "microbatch": "auto"},
    "parallel": {"stages": 2, "pipelines": 2},
}
TIME = 0.2


def network(names="abcd", memory=None, **more):
    devices = [Device(name, tflops=1.0, memory_bytes=memory, **more) for name in names]
    pairs = [(one, other) for one in names for other in names if one != other]
    return Network.measured(devices, dict.fromkeys(pairs, 0.01), dict.fromkeys(pairs, 1e9))


def made(net, work, current=None):
    return with_trials(net, work, plan(net, held(work, current), time_limit=TIME, current=current), current)


def job(**train):
    return jobs.workload_of({**JOB, "train": {**JOB["train"], **train}})


# ---- which step tries what ---------------------------------------------------------------------


def test_every_trial_is_computed_equally_often_and_next_to_itself():
    tuning = PLAN.tuning
    order = [tuning.at(step) for step in range(1, tuning.steps + 1)]
    assert order[:8] == [0, 1, 2, 3, 3, 2, 1, 0] and all(order.count(at) == CYCLES for at in range(4))
    assert tuning.at(0) is None and tuning.at(tuning.steps + 1) is None and Tuning().at(1) is None


# ---- what follows --------------------------------------------------------------------------------


def test_the_fastest_is_chosen_and_every_pipeline_keeps_its_samples():
    best = decided(PLAN, {0: Found(0.44), 1: Found(0.5), 2: Found(0.41, 9_100_000_000), 3: Found(0.6)})
    assert best.chosen == {"train.microbatch": 8, "train.recompute": False} and best.microbatches == (1, 2)
    assert best.tuning.trials == () and best.tuning.measured
    assert best.tuning.why == (
        "measured: a step takes 0.41 s with microbatch 8 and nothing computed again (up to 9.1 GB), 0.44 s with "
        "microbatch 4 and nothing computed again, 0.5 s with microbatch 2 and nothing computed again, 0.6 s with "
        "microbatch 4 and forwards computed again; 16 is too large"
    )
    assert Plan.from_json(best.to_json()) == best and Plan.from_json(PLAN.to_json()) == PLAN


def test_the_plan_s_own_choice_stays_unless_another_is_clearly_faster():
    found = {at: Found(1.0 - FASTER * 0.9 * (at == 1)) for at in range(4)}
    assert decided(PLAN, found).same_placement(PLAN)
    found[1] = Found(1.0 - FASTER * 1.1)
    assert decided(PLAN, found).chosen["train.microbatch"] == 2


def test_a_round_on_one_of_the_steps_does_not_decide():
    assert found_of([(0.4, 5), (3.0, 7), (0.5, 6)]) == Found(0.5, 7, pytest.approx(0.1))


SIZES = (Trial(4, False), Trial(2, False), Trial(8, False))


def adopted(usual, steps=3, times=2000):
    """How often each trial is chosen whose steps take ``usual`` seconds and vary by 10 %."""
    chance, counts = random.Random(1), [0] * len(usual)
    for _ in range(times):
        drawn = [[(one * max(0.2, chance.gauss(1.0, 0.1)), 0) for _ in range(steps)] for one in usual]
        counts[fastest({at: found_of(taken) for at, taken in enumerate(drawn)})] += 1
    return [count / times for count in counts]


def test_on_a_busy_machine_a_choice_that_is_no_faster_is_seldom_adopted():
    kept, *others = adopted((1.0, 1.0, 1.0))
    assert kept > 0.88 and max(others) < 0.07
    kept, *others = adopted((1.0, 1.1, 1.1))
    assert kept > 0.97, "nor one that is slower"
    assert adopted((1.0, 0.6, 1.1))[1] > 0.95, "one that is far faster is"


def test_a_gain_has_to_be_larger_than_the_noise_of_the_same_trials():
    steps = {0: [1.0, 1.1, 1.3], 1: [0.8, 0.9, 1.2], 2: [1.2, 1.2, 1.2]}  # a tenth of a second within a trial
    noisy = {at: found_of([(one, 0) for one in taken]) for at, taken in steps.items()}
    assert fastest(noisy) == 0 and fastest({at: Found(one.seconds) for at, one in noisy.items()}) == 1
    plan_of = replace(PLAN, tuning=Tuning(SIZES))
    assert decided(plan_of, noisy).same_placement(plan_of)
    assert decided(plan_of, noisy).tuning.why.endswith(" again (steps of one trial differ by 0.1 s)")
    assert fastest({**noisy, 1: Found(0.8, 0, 0.1)}) == 1, "0.3 s of gain: 0.055 of margin and 0.2 of noise"
    elsewhere = {0: Found(1.0), 1: Found(0.9), 2: Found(2.0, 0, 0.5)}
    assert fastest(elsewhere) == 0, "what disturbs another trial disturbs these two as well"


def test_a_trial_that_failed_is_not_repeated_and_without_others_the_choice_is_known():
    less = without(PLAN, 2, "b has too little memory")
    assert [one.microbatch for one in less.tuning.trials] == [4, 2, 4] and not less.tuning.measured
    assert less.tuning.why.startswith("microbatch 8 and nothing computed again is given up: b has too little")
    one = without(without(less, 1, "no"), 1, "no")
    assert one.tuning.trials == () and one.tuning.measured and one.same_placement(PLAN)


# ---- which are made ------------------------------------------------------------------------------


def test_only_what_the_job_leaves_open_is_tried():
    net = network()
    fixed = job(microbatch=4)
    assert made(net, fixed).tuning is None
    for work, sizes, again in ((job(), True, False), (job(microbatch=4, recompute="auto"), False, True)):
        found = made(net, work)
        own, *others = found.tuning.trials
        assert with_trial(found, own) == found
        assert any(one.microbatch != own.microbatch for one in others) == sizes
        assert any(one.recompute != own.recompute for one in others) == again
        for one in others:
            tried = with_trial(found, one)
            size = tried.chosen.get("train.microbatch", 4)
            assert sum(tried.microbatches) * size == 16 and min(tried.microbatches) >= 1


def test_a_neighbour_that_divides_no_share_is_passed_over_for_the_next_one():
    work, net = job(batch=120), network("ab")
    assert [one.microbatch for one in work.sizes][2:5] == [4, 8, 20]
    own = replace(made(net, replace(work, stages=1)), tuning=None)
    four = replace(own, chosen={"train.microbatch": 4}, microbatches=(15, 15))  # 60 samples: 8 does not divide them
    tried = with_trials(net, work, four, None).tuning
    assert [one.microbatch for one in tried.trials] == [4, 2, 20] and not tried.why
    uneven = with_trials(net, work, replace(four, microbatches=(14, 16)), None).tuning
    assert [one.microbatch for one in uneven.trials] == [4, 2, 8]
    odd = with_trials(net, work, replace(four, microbatches=(13, 17)), None).tuning
    assert [one.microbatch for one in odd.trials] == [4, 2]
    assert re.fullmatch(
        r"no larger microbatch is tried: none of \[8, 20, [^]]*\] divides each pipeline's 52, 68 samples", odd.why
    )


def test_what_does_not_fit_the_memory_is_never_tried():
    roomy = made(network(), job())
    counts, memory = [], 1e10
    while not counts or counts[-1]:
        found = with_trials(network(memory=memory), job(), roomy, None).tuning
        others = found.trials[1:]
        counts.append(len(others))
        assert len(others) + found.why.count("is not tried: it needs") == len(roomy.tuning.trials) - 1
        assert all(f"{one.name} is not tried" not in found.why for one in others)
        memory *= 0.8
    assert counts[0] == len(roomy.tuning.trials) - 1 and counts == sorted(counts, reverse=True)
    assert re.search(r"microbatch \d+ is not tried: it needs [\d.]+ MB of the [\d.]+ MB of a", found.why)


def test_islands_and_pieces_are_left_alone():
    work = job()
    assert made(network(ranks=2), work).tuning is None
    found = made(network(), work)
    assert with_trials(network(), work, replace(found, pieces=(1,) * len(found.pipelines)), None).tuning is None


def test_weights_that_pass_are_always_computed_with_again():
    work = jobs.workload_of(
        {
            "model": {**JOB["model"], "layers": 6},
            "train": {"batch": 2, "microbatch": 1, "recompute": "auto", "offload": "auto"},
            "parallel": {"stages": 1, "pipelines": 2},
        }
    )
    found, roomy = made(network("ab", memory=8e7), work), made(network("ab", memory=1e9), work)
    assert found.chosen == {"train.offload": "parameters", "train.recompute": True} and found.tuning is None
    known = decided(roomy, {0: Found(1.0), 1: Found(1.0)})
    assert known.chosen == {"train.offload": "none", "train.recompute": False}
    with pytest.raises(PlanError):  # then the search takes all that the job leaves open
        plan(network("ab", memory=1.1e8), held(work, known), time_limit=TIME)


# ---- where the moments lie -----------------------------------------------------------------------


def with_moments():
    """(A network whose devices hold it only just, the plan with pieces, a workload that leaves offload open)."""
    net, work = network(memory=2.8e8), jobs.workload_of({**JOB, "train": {"batch": 16, "offload": "auto"}})
    return net, made(net, work), work


def test_what_fits_only_with_moments_in_main_memory_is_tried_so():
    net, found, work = with_moments()
    assert found.chosen == {"train.offload": "none"} and found.pieces == (2, 2)
    own, whole = found.tuning.trials
    assert (own.offload, own.pieces, own.samples(0)) == ("none", (2, 2), 2) and with_trial(found, own) == found
    assert (whole.offload, whole.pieces, whole.samples(0)) == ("moments", (), 4)
    assert (own.name, whole.name) == ("microbatch 4 in pieces", "microbatch 4 (moments in main memory)")
    assert Plan.from_json(found.to_json()) == found
    again = jobs.workload_of({**JOB, "train": {"batch": 16, "offload": "auto", "recompute": "auto"}})
    kinds = [(one.offload, bool(one.pieces), one.recompute) for one in made(net, again).tuning.trials]
    assert kinds == [("none", True, False), ("none", False, True), ("moments", False, False)], "which move, last"
    assert made(network(memory=2.8e8, one_memory=True), work).tuning is None, "a CPU has one memory"
    assert made(network(memory=2.8e8, ranks=2), work).tuning is None


def test_the_first_step_after_moments_have_moved_is_not_counted():
    tuning = Tuning((Trial(4, offload="none"), Trial(2, offload="none"), Trial(4, offload="moments")))
    steps = range(1, tuning.steps + 1)
    order = [tuning.at(step) for step in steps]
    assert order == [0, 1, 2, 2, 2, 1, 1, 0, 0, 1, 2, 2, 2, 1, 1, 0] and tuning.at(len(order) + 1) is None
    assert {step for step in steps if not tuning.counts(step)} == {1, 2, 3, 4, 6, 11, 14}
    counted = [tuning.at(step) for step in steps if tuning.counts(step)]
    assert all(counted.count(at) == CYCLES - 1 for at in range(3))


def test_moments_that_were_measured_to_be_better_there_stay_there():
    net, first, work = with_moments()
    stays, moved = (decided(first, {0: Found(0.4), 1: Found(seconds)}) for seconds in (0.39, 0.3))
    assert stays.same_placement(first) and not stays.tuning.offload
    assert moved.chosen == {"train.offload": "moments"} and moved.pieces == () and moved.tuning.offload == "moments"
    assert 'train.offload = "none": it fits' in first.why and "train.offload" not in moved.why
    assert moved.tuning.why == (
        "measured: a step takes 0.3 s with microbatch 4 (moments in main memory), 0.4 s with microbatch 4 in pieces"
    )
    for best in (stays, moved):
        again = made(net, work, best)
        assert again.same_placement(best) and again.tuning == best.tuning, "less would fit, and was slower"
    roomy = made(network("ab", memory=1e9), replace(work, pipelines=1), moved)
    kinds = [(one.offload, one.pieces) for one in roomy.tuning.trials]
    assert kinds == [("moments", ()), ("none", ())], "a new shape is measured anew"
    with pytest.raises(PlanError):  # then the search takes all that the job leaves open
        plan(network(memory=2.8e8, one_memory=True), held(work, moved), time_limit=TIME)


# ---- the next plan -------------------------------------------------------------------------------


def test_what_was_measured_holds_while_the_shape_is_the_same_and_longer():
    net, work = network(), job()
    first = made(net, work)
    assert first.tuning.trials and made(net, work, first).tuning == first.tuning, "the trials begin again"
    found = {at: Found(1.0 - 0.5 * (at == 1)) for at in range(len(first.tuning.trials))}
    best = decided(first, found)
    again = made(net, work, best)
    assert again.same_placement(best) and again.tuning == best.tuning
    fewer = made(network("ab"), replace(work, pipelines=1), best)
    assert fewer.chosen == best.chosen, "the arithmetic's own choice was slower"
    assert fewer.tuning.trials and fewer.tuning.measured, "a new shape is measured anew, and until then nothing is lost"
    back = made(net, work, fewer)  # the view of two ended within its trials
    assert back.chosen == best.chosen and back.tuning.trials, "what was measured survives it"
    two = replace(fewer, tuning=None)
    assert with_trials(network("ab", ranks=2), work, two, best).tuning == Tuning(measured=True), (
        "where nothing can be tried"
    )
    assert held(replace(work, sizes=work.sizes[-1:]), best).sizes, "another job than the one that was measured"


def test_what_nobody_compared_is_not_kept_as_measured():
    """Where nothing fits with what was measured, the search takes all that is open; that choice is the arithmetic's."""
    net, work = network("ab"), replace(job(recompute="auto"), stages=1)
    first = made(net, work)
    best = decided(first, {at: Found(0.4) for at in range(len(first.tuning.trials))})
    tight = network("ab", memory=2.5e8)
    with pytest.raises(PlanError):
        plan(tight, held(work, best), time_limit=TIME)
    other = with_trials(tight, work, plan(tight, work, time_limit=TIME), best)
    assert other.chosen != best.chosen and not (other.tuning is not None and other.tuning.measured)
    assert held(work, other) is work


def test_a_shape_that_compares_no_offload_keeps_what_one_before_has_shown():
    known = {**CHOSEN, "train.offload": "moments"}
    tuning = Tuning(TRIALS, measured=True, offload="moments")
    for seconds in (0.3, 0.5):
        best = decided(replace(PLAN, chosen=known, tuning=tuning), {0: Found(0.4), 2: Found(seconds)})
        assert best.tuning.offload == best.chosen["train.offload"] == "moments"


def lost(found):
    return replace(found, tuning=replace(found.tuning, broken=found.tuning.broken + 1))


def test_nodes_that_are_lost_during_trials_end_them_in_the_end_even_if_they_are_back_at_once():
    net, work = network(), job()
    current = made(net, work)
    for number in range(1, MOST_BROKEN + 1):
        assert current.tuning.trials
        current = with_trials(net, work, replace(current, tuning=None), lost(current))
        assert current.tuning.broken == number
    assert not current.tuning.trials and f"lost during trials, {MOST_BROKEN} times" in current.tuning.why
    assert with_trials(net, work, replace(current, tuning=None), current).tuning == current.tuning


def test_a_shape_in_which_nothing_can_be_tried_forgets_no_lost_node():
    work = job()
    whole = made(network(), work)
    pieces = replace(whole, tuning=None, pieces=(1,) * len(whole.pipelines))
    between = with_trials(network(), work, pieces, lost(whole))
    assert between.tuning == Tuning(broken=1)
    again = with_trials(network(), work, replace(whole, tuning=None), between)
    assert again.tuning.broken == 1 and again.tuning.trials


# ---- hostile plans -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tuning",
    [
        3,
        "x",
        [],
        {},
        {"trials": 1},
        {"trials": [{}], "why": "", "broken": 0},
        {
            "trials": [{"microbatch": 4, "recompute": None, "in_flight": [], "pieces": [0, 1]}],
            "why": "",
            "broken": 0,
            "measured": False,
        },
    ],
)
def test_trials_that_make_no_sense_are_no_plan(tuning):
    with pytest.raises(PlanError):
        Plan.from_json(json.dumps({**json.loads(PLAN.to_json()), "tuning": tuning}))
