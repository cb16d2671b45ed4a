"""Each link between stages has the gentlest codec that keeps the pace; a link that changes gets another."""

from itertools import product

import numpy
import pytest

from farflung.job.checks.whole import job_mistakes
from farflung.job.forward import settled, with_forward
from farflung.job.schema import Activations, Job
from farflung.scheduler import Device, Network, Workload, plan
from farflung.scheduler.explaining.predict import indices
from farflung.scheduler.planning.choose_codecs import choose_codecs
from farflung.scheduler.planning.replan import as_candidate
from farflung.scheduler.timing.estimate import Estimator
from farflung.scheduler.timing.simulated import run as simulated
from farflung.scheduler.workloads.jobs import workload_of
from farflung.scheduler.workloads.ladder import link_ladder

JOB = {
    "run": {"epochs": 3},
    "model": {"family": "gpt2", "layers": 4, "width": 256, "heads": 4, "context": 128},
    "train": {"batch": 32, "microbatch": 4},
    "parallel": {"stages": 3, "pipelines": 1},
    "activations": {"forward": "aqsgd:bits=4", "backward": "int8", "by_link": True},
}
FAST, SLOW = 1e10, 2e7


def network(first: float, second: float) -> Network:
    """a, b and c of half a Tflop/s; between a and b `first` bit/s, between b and c `second`."""
    rate = numpy.full((3, 3), 1e6)
    rate[0, 1] = rate[1, 0] = first
    rate[1, 2] = rate[2, 1] = second
    devices = [Device(name, tflops=0.5) for name in "abc"]
    return Network(devices, numpy.full((3, 3), 0.002), rate)


def seconds(wan: Network, workload: Workload, made, codecs: dict[str, str]) -> float:
    places, cut = indices(wan, workload, made)
    return simulated(Estimator(wan, workload, codecs), places, cut, made.microbatches, "1f1b")[1]


def test_the_ladder_ends_with_the_jobs_codecs_and_has_none_that_is_lossier() -> None:
    assert link_ladder("aqsgd:bits=4", "int8") == (
        ("none", "none"), ("bf16", "bf16"), ("int8", "int8"), ("aqsgd:bits=4", "int8"),
    )  # fmt: skip
    assert link_ladder("int8", "bf16") == (("none", "none"), ("bf16", "bf16"), ("int8", "bf16"))
    assert link_ladder("bf16", "none") == (("none", "none"), ("bf16", "none"))
    assert link_ladder("none", "int8") == (("none", "int8"),)


@pytest.mark.parametrize(("first", "second"), [(FAST, SLOW), (SLOW, FAST), (SLOW, SLOW), (1e8, 2e8), (FAST, FAST)])
def test_a_slow_link_and_a_fast_one_have_different_codecs_and_the_step_of_the_best(first: float, second: float) -> None:
    wan, workload = network(first, second), workload_of(JOB)
    made = plan(wan, workload, time_limit=20)
    links = {f"{one}>{two}" for one, two in zip(made.pipelines[0], made.pipelines[0][1:], strict=False)}
    assert set(made.codecs) == links == {"a>b", "b>c"} or links == {"c>b", "b>a"}
    names = [choice.name for choice in workload.codecs]
    best = min(
        seconds(wan, workload, made, dict(zip(sorted(links), chosen, strict=True)))
        for chosen in product(names, repeat=2)
    )
    assert seconds(wan, workload, made, made.codecs) <= 1.1 * best
    rates = {"a>b": first, "b>a": first, "b>c": second, "c>b": second}
    for link, codec in made.codecs.items():
        assert (codec == "none") == (rates[link] == FAST)
        assert names.index(codec) >= 2 or rates[link] != SLOW


def test_a_link_that_changes_gets_another_codec_and_nobody_moves() -> None:
    workload = workload_of(JOB)
    made = plan(network(FAST, SLOW), workload, time_limit=20)
    assert plan(network(FAST, 1.05 * SLOW), workload, time_limit=20, current=made) is made
    slower = plan(network(SLOW, SLOW), workload, time_limit=20, current=made)
    assert slower.pipelines == made.pipelines and slower.codecs != made.codecs and not slower.same_placement(made)
    assert " sends " in slower.why
    back = plan(network(FAST, SLOW), workload, time_limit=20, current=slower)
    assert back.codecs == made.codecs, "gentler, and a step is no longer"


def test_many_links_are_chosen_for_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    wan, workload = network(FAST, SLOW), workload_of(JOB)
    estimator = Estimator(wan, workload)
    kept = as_candidate(estimator, plan(wan, workload, time_limit=20))
    assert kept is not None
    slow = {link: codec for link, codec in choose_codecs(estimator, kept).items() if codec != "none"}
    monkeypatch.setattr("farflung.scheduler.planning.choose_codecs.MOST_TRIED", 1)
    one_by_one = choose_codecs(estimator, kept)
    assert {link: codec for link, codec in one_by_one.items() if codec != "none"}.keys() == slow.keys()


def test_auto_means_by_link_and_a_codec_of_ones_own_does_not() -> None:
    job = Job.model_validate({**JOB, "data": {"text": ["x"]}, "activations": {"forward": "auto"}})
    found, _ = settled(job, 32, 4)
    assert found.activations.by_link and found == with_forward(job, "aqsgd:bits=4")
    both = Job.model_validate({**JOB, "data": {"text": ["x"]}, "activations": {"forward": "auto", "backward": "auto"}})
    assert settled(both, 32, 4)[0].activations.backward == "int8"
    assert not any("activations" in said for _, said in job_mistakes(both, files=False))
    lone = both.model_copy(update={"activations": Activations(forward="int8", backward="auto")})
    assert "it needs activations.forward" in "".join(said for _, said in job_mistakes(lone, files=False))
    fixed = workload_of({**JOB, "activations": {"forward": "int8"}})
    assert fixed.codecs == ()
