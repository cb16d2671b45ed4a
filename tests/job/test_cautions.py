"""What a start warns of: momenta that swing, momenta that outlast the run."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tomllib

import farflung.examples
from farflung.coordinator.run.effects.performing import Performer
from farflung.job.checks.cautions import MUON_MOMENTUM, cautions
from farflung.job.schema import Job
from farflung.node.state.optimizers.muon import MOMENTUM


def job_of(outer: str, every: Any, **train: Any) -> Job:
    updates = {"mode": "delta", "every": every, "outer": outer}
    return Job.model_validate(
        {
            "run": {"name": "cautions", "steps": 1000},
            "model": {"family": "gpt2", "layers": 2, "width": 16, "heads": 2, "context": 8},
            "data": {"text": ["none.txt"]},
            "train": {"betas": [0.9, 0.99], **train},
            "updates": updates,
        }
    )


EXAMPLES = Path(farflung.examples.__file__).parent
MOST, HALF = "nesterov:lr=0.7,momentum=0.9", "nesterov:lr=0.7,momentum=0.5"
FINE = [(HALF, 1, {}), (HALF, 20, {}), (MOST, 10, {}), ("average", 1, {}), (MOST, "auto", {})]
SWING = [(MOST, 2, {}), (MOST, 5, {}), (MOST, 10, {"optimizer": "muon"})]


@pytest.mark.parametrize(("outer", "every", "train"), FINE)
def test_nothing_is_said_of_what_does_well(outer: str, every: Any, train: dict[str, Any]) -> None:
    assert list(cautions(job_of(outer, every, **train), 1000)) == []


@pytest.mark.parametrize(("outer", "every", "train"), SWING)
def test_an_outer_momentum_over_short_rounds_swings_with_the_local_one(
    outer: str, every: Any, train: dict[str, Any]
) -> None:
    (said,) = cautions(job_of(outer, every, **train), 1000)
    assert "the two swing" in said and "every = " in said


def test_an_optimiser_without_momentum_does_not_swing() -> None:
    assert list(cautions(job_of(MOST, 2, betas=[0.0, 0.99]), 1000)) == []


def test_an_outer_momentum_needs_rounds() -> None:
    (said,) = cautions(job_of(MOST, 20), 1000)
    assert "100 rounds and more, and this run has 50" in said


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_examples_do_what_does_well(path: Path) -> None:
    assert list(cautions(Job.model_validate(tomllib.loads(path.read_text())), 200)) == []


def test_muon_has_the_momentum_that_is_counted_with() -> None:
    assert MUON_MOMENTUM == MOMENTUM


def test_a_start_warns_once() -> None:
    kept: dict[str, str] = {}
    said: list[str] = []
    performing = SimpleNamespace(
        announcing=SimpleNamespace(send=lambda effect, to: None),
        context=SimpleNamespace(
            job=job_of(MOST, 20),
            facts=SimpleNamespace(samples=100),
            store=SimpleNamespace(get=kept.get, put=kept.__setitem__),
        ),
        warn=lambda node, word: said.append(word),
    )
    for _ in range(2):
        Performer._start(performing, SimpleNamespace(to=()))  # type: ignore[arg-type]
    assert len(said) == 1
