"""Conversations that would share a sample, for a model that cannot keep them apart."""

import asyncio
import json
import sys

import pytest

from farflung.coordinator.data import facts
from farflung.job.data.facts import Profile
from farflung.job.files import load_job
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
"""
ROWS = (json.dumps({"prompt": "c", "completion": "d" * 5}) + "\n") * 9
OPT = Profile(layers=[], tied=False, family="opt", documents=False)
ROUTED = Profile(layers=[], tied=False, family="mixtral", balance=0.1)
SOURCES = {
    "chat": '[data]\nchat = "c.jsonl"\n',
    "mixture": '[[data.mix]]\nweight = 1\ntext = "a.txt"\n[[data.mix]]\nweight = 1\nchat = "c.jsonl"\n',
    "set": '[data]\ntext = "a.txt"\n[[eval.sets]]\nname = "talks"\nchat = "c.jsonl"\n',
}


def job_of(folder, data):
    (folder / "a.txt").write_text("a" * 300)
    (folder / "c.jsonl").write_text(ROWS)
    (folder / "job.toml").write_text(HEAD + data)
    return load_job(folder / "job.toml")


@pytest.mark.parametrize("source", SOURCES)
def test_conversations_that_a_model_cannot_tell_apart_are_refused_at_the_start(tmp_path, source):
    job = job_of(tmp_path, SOURCES[source])
    profile = (sys.executable, "-c", f"print({OPT.model_dump_json()!r})")
    with pytest.raises(JobError, match="'opt' can't tell several conversations") as refused:
        asyncio.run(facts.prepare(job, tmp_path / "tokens", profile))
    assert "pack = false" in refused.value.hint
    alone = job.model_copy(update={"data": job.data.model_copy(update={"pack": False})})
    facts.check_packed(alone, OPT)
    with pytest.raises(JobError, match=r"not yet: model\.router_loss with several conversations"):
        facts.check_packed(job, ROUTED)


def test_text_has_one_document_a_sample(tmp_path):
    facts.check_packed(job_of(tmp_path, '[data]\ntext = "a.txt"\n'), OPT)
