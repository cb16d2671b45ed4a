"""Robust averages: exact norms, what is drawn in, and what a job may ask for."""

import math

import pytest
import torch

from farflung import compress
from farflung.job.checks.whole import job_mistakes
from farflung.job.schema import Job
from farflung.job.tables.robust import Robust, parse_robust
from farflung.node.rounds.arithmetic.exchange import Exchange
from farflung.node.rounds.arithmetic.robust import exact_square, factors_of
from farflung.node.rounds.protocol.messages import Part, RoundPlan
from farflung.node.rounds.protocol.payloads import contribution_of
from farflung.node.state.sections.moments import Kept
from farflung.node.state.sections.section import Layout, Section


def values_of(seed, scale=1.0):
    return torch.randn(5000, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e30])
def test_a_norm_has_the_same_bits_in_any_order(scale):
    values = values_of(1, scale)
    shuffled = values[torch.randperm(5000, generator=torch.Generator().manual_seed(2))]
    assert exact_square(values) == exact_square(shuffled)
    assert exact_square(values) == pytest.approx(float(values.double().square().sum()), rel=1e-5)
    assert exact_square(values * 4) == 16 * exact_square(values)


def test_norms_at_the_edges():
    assert exact_square(torch.zeros(3)) == 0.0 and exact_square(torch.zeros(0)) == 0.0
    assert exact_square(torch.tensor([1e-44])) < 1e-80
    assert math.isnan(exact_square(torch.tensor([1.0, torch.inf])))


def test_what_lies_further_than_the_median_is_drawn_in_to_it():
    assert factors_of(Robust("clip"), [1.0, 2.0, 4.0, 0.5]) == [1.0, 0.5, 0.25, 1.0]
    assert factors_of(Robust("clip", 2.0), [1.0, 2.0, 4.0, 0.5]) == [1.0, 1.0, 0.5, 1.0]
    assert factors_of(Robust("clip"), [math.nan, 1.0, 3.0]) == [1.0, 1.0, pytest.approx(1 / 3)]
    assert factors_of(Robust("clip"), [0.0, 0.0, 3.0]) == [1.0, 1.0, 0.0]


def exchange_of(robust):
    plan = RoundPlan("stage-0", ("a", "b", "c"), (1.0,) * 3, (Part(0, "a", 0, 5000),), "all_to_all")
    section = Section(Layout.of("stage-0", {"w": (5000,)}), False, Kept(), torch.device("cpu"))
    return Exchange(section, plan, "a", "none", seed=7, robust=Robust(robust))


@pytest.mark.parametrize("robust", ["none", "clip", "centered"])
def test_one_that_lies_far_out_moves_the_mean_no_further_than_another(robust):
    exchange, center = exchange_of(robust), values_of(9)
    if robust == "centered":
        exchange.aggregator.center.copy_(center)
    sent = [center + values_of(1, 0.1), center + values_of(2, 0.1), center * -50.0]
    blobs = [(i, contribution_of([exchange.encoder.encode(one, 1, 0, i)])) for i, one in enumerate(sent)]
    mean = exchange.aggregator.sum(exchange.aggregator.sources(exchange.plan.parts[0], blobs), slice(0, 5000))
    away = float((mean - center).norm() / center.norm())
    assert {"none": away > 10, "clip": 0.5 < away < 1, "centered": away < 0.1}[robust]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("clipp", "did you mean 'clip'"),
        ("clip:x=1", "not tau=NUMBER"),
        ("centered:tau=0", "above 0"),
        ("none:tau=1", "tau"),
    ],
)
def test_words_that_mean_nothing(text, wrong):
    with pytest.raises(ValueError, match=wrong):
        parse_robust(text)


def test_what_a_job_may_ask_for():
    assert parse_robust("centered:tau=1.5") == Robust("centered", 1.5) and not parse_robust("none")

    def mistakes(codec, robust):
        model = {"family": "gpt2", "layers": 2, "width": 16, "heads": 2, "context": 8}
        updates = {"mode": "delta", "codec": codec, "robust": robust}
        job = Job.model_validate(
            {"model": model, "data": {"text": [__file__]}, "run": {"steps": 1}, "updates": updates}
        )
        return [why for _, why in job_mistakes(job, compress.check)]

    assert not mistakes("int8", "clip") and not mistakes("powersgd:rank=2", "none")
    assert "added up without being decoded" in mistakes("powersgd:rank=2", "clip")[0]
