"""Sets to evaluate on: what a job file says of them, and what the coordinator makes of them."""

import asyncio
import json
import sys

import numpy as np
import pytest

from farflung.coordinator.data import facts
from farflung.job.data.facts import Facts
from farflung.job.data.marks import MARKED, TRAINED, tokens_of
from farflung.job.files import load_job
from farflung.job.schema import Job
from farflung.job.shared import for_nodes
from farflung.node.data.eval_sets import EVAL_COUNTS, EVAL_TOKENS
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
text = ["a.txt"]
"""
PROFILE = (sys.executable, "-c", """print('{"layers": [], "tied": false, "family": ""}')""")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.txt").write_text("a" * 900)
    (tmp_path / "b.txt").write_text("b" * 100)
    (tmp_path / "c.jsonl").write_text((json.dumps({"prompt": "c", "completion": "d" * 5}) + "\n") * 9)
    return tmp_path


def test_sets_lie_one_after_the_other_in_a_file_of_their_own(folder):
    """The training data stay as they are without them, and a start again reads nothing twice."""
    (folder / "job.toml").write_text(HEAD)
    alone = asyncio.run(facts.prepare(load_job(folder / "job.toml"), folder / "tokens", PROFILE)).facts
    sets = '[[eval.sets]]\nname = "bees"\ntext = "b.txt"\n[[eval.sets]]\nname = "talks"\nchat = ["c.jsonl"]\n'
    (folder / "job.toml").write_text(HEAD + sets)
    job, told = load_job(folder / "job.toml"), []
    made = [asyncio.run(facts.prepare(job, folder / "tokens", PROFILE, told.append)) for _ in range(2)]
    found = made[0].facts
    assert found == made[1].facts == Facts.model_validate_json(found.model_dump_json())
    assert (found.samples, found.tokens_digest) == (alone.samples, alone.tokens_digest)
    assert found.sets[0] == ("bees", 12) and found.sets[1][0] == "talks"
    assert found.sets_dtype == MARKED and found.sets_packed and not found.packed
    assert found.evaluated == found.validation_samples + sum(count for _, count in found.sets)
    assert sum("an earlier start made" in one.get("message", "") for one in told) == 3
    rows = np.frombuffer(made[0].files[EVAL_TOKENS].read_bytes(), "<u4").reshape(-1, 9)
    assert len(rows) == sum(count for _, count in found.sets)
    assert (tokens_of(rows[:12]) == ord("b")).all() and (rows[:12, 1:] & TRAINED).all()
    learnt = tokens_of(rows[12:])[(rows[12:] & TRAINED) > 0]
    assert set(learnt.tolist()) == {ord("d")}
    counts = np.frombuffer(made[0].files[EVAL_COUNTS].read_bytes(), "<u4")
    assert counts.tolist() == ((rows[:, 1:] & TRAINED) > 0).sum(axis=1).tolist()
    assert facts.restore(job, found, folder / "tokens") is not None
    made[0].files[EVAL_TOKENS].unlink()
    assert facts.restore(job, found, folder / "tokens") is None


def test_mistakes_in_sets_are_named(folder):
    both = '[[eval.sets]]\nname = "x"\ntext = "a.txt"\n[[eval.sets]]\nname = "X"\ntext = "a.txt"\n'
    wrong = {
        "exactly one of text": '[[eval.sets]]\nname = "x"\n',
        "it has text and jsonl": '[[eval.sets]]\nname = "x"\ntext = ["a.txt"]\njsonl = ["a.txt"]\n',
        "there is no file": '[[eval.sets]]\nname = "x"\ntext = ["none.txt"]\n',
        "eval.sets.name is missing": '[[eval.sets]]\ntext = ["a.txt"]\n',
        "eval.sets.name = ": '[[eval.sets]]\nname = "a b"\ntext = ["a.txt"]\n',
        "unknown key eval.sets.weight": '[[eval.sets]]\nname = "x"\nweight = 2\ntext = ["a.txt"]\n',
        "2 of them have the name 'x'": both,
    }
    for sentence, tables in wrong.items():
        (folder / "job.toml").write_text(HEAD + tables)
        with pytest.raises(JobError) as refused:
            load_job(folder / "job.toml")
        assert sentence in refused.value.message, refused.value.message


def test_a_set_with_nothing_in_it_is_named(folder):
    (folder / "b.txt").write_text("b")
    (folder / "job.toml").write_text(HEAD + '[[eval.sets]]\nname = "bees"\ntext = "b.txt"\n')
    with pytest.raises(JobError, match=r"eval\.sets 'bees': the text is too short"):
        asyncio.run(facts.prepare(load_job(folder / "job.toml"), folder / "tokens", PROFILE))


def test_nobody_is_told_the_passwords_of_its_places():
    job = Job.model_validate(
        {
            "run": {"steps": 1},
            "model": {"family": "gpt2", "layers": 1, "width": 8, "heads": 2, "context": 8},
            "data": {"text": ["a.txt"]},
            "eval": {"sets": [{"name": "x", "text": ["ftp://me:secret@place/a.txt"]}]},
        }
    )
    assert "secret" not in for_nodes(job).model_dump_json()
