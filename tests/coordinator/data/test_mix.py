"""Mixtures with weights: what is drawn is a function of the position, and every source is drawn by its weight."""

import asyncio
import json
import sys

import numpy as np
import pytest

from farflung.coordinator.data import facts
from farflung.coordinator.data.mix import tokenise_mix
from farflung.job.data.facts import Facts
from farflung.job.data.marks import MARKED, TRAINED, tokens_of
from farflung.job.data.sampling import Mixture, Position, sample_ids, unfinished
from farflung.job.data.tokenizer_folder import load_tokenizer
from farflung.job.files import load_job
from farflung.job.schema import Job
from farflung.job.shared import for_nodes
from farflung.proto.errors import JobError

HEAD = """
[run]
steps = 1
[model]
family = "gpt2"
layers = 1
width = 8
heads = 2
context = 8
[data]
"""
MIX = Mixture.of([50, 3000], [3.0, 1.0])


def test_weights_are_kept_exactly_in_every_block():
    assert MIX.parts == ((50, 750), (3000, 250)) and MIX.samples == 3050
    ids = np.array(sample_ids(range(4 * MIX.block), 7, MIX)).reshape(4, -1)
    assert ((ids < 50).sum(axis=1) == 750).all()
    assert np.array_equal(np.bincount(ids[ids < 50]), np.full(50, 60)), "a small source is gone through evenly"
    late = ids[ids >= 50]
    assert len(set(late.tolist())) == len(late) == 1000, "no sample of a large one comes twice before all have come"
    assert (ids[0] < 50).std() > 0.4 and sample_ids(range(MIX.block), 8, MIX) != ids[0].tolist()


def test_shares_are_never_nothing_and_add_up():
    mixture = Mixture.of([10, 10, 10], [1000.0, 1e-9, 1.0])
    assert sum(draws for _, draws in mixture.parts) == mixture.block and min(draws for _, draws in mixture.parts) >= 1


@pytest.mark.parametrize("stop", [3, 11])
def test_interrupted_is_uninterrupted(stop):
    """What was trained before a break, what it left, and what comes after are the whole run's samples, each once."""
    batch, steps, shares = 12, 20, (2, 1)
    whole = sample_ids([q for step in range(1, steps + 1) for q in Position().positions(step, batch)], 5, MIX)
    again = unfinished(Position(), [stop, stop - 2], stop, shares, 4, 5, samples=MIX)
    after = Position().after(stop, batch, again)
    left = set(again)
    before = [q for step in range(1, stop + 1) for q in Position().positions(step, batch) if q not in left]
    last = after.last_step(steps * batch, batch)
    rest = [q for step in range(stop + 1, last + 1) for q in after.positions(step, batch)]
    assert sorted(sample_ids(before, 5, MIX) + sample_ids(rest[: steps * batch - len(before)], 5, MIX)) == sorted(whole)


def test_a_job_file_with_a_mixture(tmp_path):
    (tmp_path / "a.txt").write_text("a" * 900)
    (tmp_path / "b.jsonl").write_text((json.dumps({"prompt": "b", "completion": "c" * 5}) + "\n") * 9)
    text = HEAD + "validation = 0.1\n"
    text += '[[data.mix]]\nweight = 3\ntext = ["a.txt"]\n[[data.mix]]\nweight = 1.0\nchat = "b.jsonl"\n'
    (tmp_path / "job.toml").write_text(text)
    job = load_job(tmp_path / "job.toml")
    told = []
    made = tokenise_mix(job, load_tokenizer("bytes"), 8, tmp_path / "tokens", told.append, 10**9)
    mixture = Mixture(made.mix)
    assert made.dtype == MARKED and made.samples == mixture.samples
    rows = np.frombuffer(made.path.read_bytes(), "<u4").reshape(-1, 9)
    tokens = tokens_of(rows)
    assert (tokens[: mixture.parts[0][0]] == ord("a")).all() and (rows[0, 1:] & TRAINED).all()
    later = tokens[mixture.parts[0][0] : made.samples]
    assert set(np.unique(later)) <= {0, ord("b"), ord("c")} and (later == ord("c")).any()
    assert "0.75 of" in told[-1]["message"]
    left = {path.name for path in (tmp_path / "tokens").iterdir()}
    assert left == {made.digest, made.digest + ".counts"}


def test_a_start_again_finds_the_mixture_that_it_made(tmp_path):
    """Facts name the shares, and nothing is read twice."""
    (tmp_path / "a.txt").write_text("a" * 900)
    (tmp_path / "b.txt").write_text("b" * 300)
    (tmp_path / "job.toml").write_text(
        HEAD + '[[data.mix]]\nweight = 1\ntext = "a.txt"\n[[data.mix]]\nweight = 3\ntext = "b.txt"\n'
    )
    job = load_job(tmp_path / "job.toml")
    profile = (sys.executable, "-c", """print('{"layers": [], "tied": false, "family": ""}')""")
    told = []
    made = [asyncio.run(facts.prepare(job, tmp_path / "tokens", profile, told.append)) for _ in range(2)]
    assert made[0].facts == made[1].facts and made[0].facts.drawn == Mixture(((106, 250), (35, 750)))
    assert any("the tokens that an earlier start made are used" in one.get("message", "") for one in told)
    assert Facts.model_validate_json(made[0].facts.model_dump_json()) == made[0].facts
    assert facts.restore(job, made[0].facts, tmp_path / "tokens") is not None


def test_mistakes_in_a_mixture_are_named(tmp_path):
    (tmp_path / "a.txt").write_text("a" * 900)
    wrong = {
        "exactly one of text": '[[data.mix]]\nweight = 1\ntext = ["a.txt"]\njsonl = ["a.txt"]\n',
        "there is no file": '[[data.mix]]\nweight = 1\ntext = ["none.txt"]\n',
        "data.mix.weight": '[[data.mix]]\nweight = -1\ntext = ["a.txt"]\n',
        "unknown key data.mix.wieght": '[[data.mix]]\nwieght = 1\ntext = ["a.txt"]\n',
        "it has text and mix": 'text = ["a.txt"]\n[[data.mix]]\nweight = 1\ntext = ["a.txt"]\n',
    }
    for sentence, tables in wrong.items():
        (tmp_path / "job.toml").write_text(HEAD + tables)
        with pytest.raises(JobError) as refused:
            load_job(tmp_path / "job.toml")
        assert sentence in refused.value.message, refused.value.message


def test_nobody_is_told_the_passwords_of_its_places():
    job = Job.model_validate(
        {
            "run": {"steps": 1},
            "model": {"family": "gpt2", "layers": 1, "width": 8, "heads": 2, "context": 8},
            "data": {"mix": [{"weight": 1.0, "text": ["ftp://me:secret@place/a.txt"]}]},
        }
    )
    assert "secret" not in for_nodes(job).model_dump_json()
