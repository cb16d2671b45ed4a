"""What a plan may choose of a job: what the job leaves open, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.job.chosen import every_of, left_open, microbatch_of, mistakes, with_chosen
from farflung.job.files import load_job
from farflung.job.schema import EVERY, Job
from farflung.proto.errors import JobError


def job_of(every="auto", recompute="auto", microbatch=2, **updates):
    return Job.model_validate(
        {
            "run": {"name": "open", "steps": 1},
            "model": {"family": "gpt2", "layers": 1, "width": 16, "heads": 2, "context": 8},
            "data": {"text": ["none.txt"]},
            "train": {"recompute": recompute, "batch": 12, "microbatch": microbatch},
            "updates": {"mode": "delta", "every": every, **updates},
        }
    )


VALUES = st.one_of(st.integers(-2, 200), st.booleans())
KEYS = ["updates.every", "train.recompute", "train.microbatch", "model.layers"]
CHOICES = st.dictionaries(st.sampled_from(KEYS), VALUES)


@given(st.sampled_from(["auto", 1, 7]), st.sampled_from(["auto", True, False]), st.sampled_from(["auto", 4]), CHOICES)
def test_a_plan_chooses_what_is_open_and_all_of_it(every, recompute, microbatch, chosen):
    job = job_of(every, recompute, microbatch)
    wrong = list(mistakes(job, chosen))
    right = set(chosen) == set(left_open(job))
    number, again = chosen.get("updates.every", 1), chosen.get("train.recompute", True)
    size = chosen.get("train.microbatch", 1)
    right &= type(number) is int and 1 <= number <= EVERY[-1] and type(again) is bool
    right &= type(size) is int and size >= 1 and 12 % size == 0
    assert (not wrong) == right
    if right:
        made = with_chosen(job, chosen)
        assert left_open(made) == () and with_chosen(made, chosen) == made
        assert made.updates.period == made.updates.interval == every_of(job, chosen)
        assert made.train.microbatches == 12 // microbatch_of(job, chosen)
        assert (made is job) == (not chosen)


def test_what_is_not_chosen_yet_has_no_number():
    assert every_of(job_of(), {}) == EVERY[-1]
    with pytest.raises(ValueError, match="chosen by the plan"):
        _ = job_of().updates.interval
    with pytest.raises(ValueError, match="chosen by the plan"):
        _ = job_of(microbatch="auto").train.microbatches
    assert job_of(microbatch="auto").train.most_microbatches == 12 and job_of().train.most_microbatches == 6
    assert "overlap" not in "".join(mistakes(job_of(overlap=2), {"updates.every": 5, "train.recompute": False}))
    assert list(mistakes(job_of(overlap=5), {"updates.every": 2, "train.recompute": False}))


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ('mode = "gradient"\nevery = "auto"', "mode gradient exchanges every step"),
        ('mode = "delta"\nevery = "auto"\nfragments = 2', 'needs an updates.every that it divides, not "auto"'),
        ('mode = "delta"\nevery = "auto"\noverlap = 101', "more than the 100 steps"),
        ('mode = "delta"\nevery = "auto"\nagreed = false\npattern = "gossip"', "not yet"),
        ('mode = "delta"\nevery = "often"', "updates.every"),
    ],
)
def test_what_auto_does_not_go_with_is_said(tmp_path, table, sentence):
    model = '[model]\nfamily = "gpt2"\nlayers = 1\nwidth = 16\nheads = 2\ncontext = 8\n'
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "job.toml").write_text(f'[run]\nsteps = 1\n{model}[data]\ntext = ["a.txt"]\n[updates]\n{table}\n')
    with pytest.raises(JobError) as caught:
        load_job(tmp_path / "job.toml")
    assert sentence in str(caught.value)
