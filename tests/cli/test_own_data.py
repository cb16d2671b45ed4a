"""Private data: every node trains on files of its own, and nobody else ever has them."""

import pytest

from farflung.cli.own_data import opener
from farflung.job.checks.data import leaves_its_folder
from farflung.job.data.facts import Facts, Profile
from farflung.job.files import load_job
from farflung.node.data.dataset import Dataset, OwnData
from farflung.node.data.opening import DataSource, OwnDataUnusable
from farflung.proto.errors import FarflungError, JobError

OWN = (
    ("steps = 4", "steps = 6"),
    ("validation = 0.1", 'validation = 0.1\nwhere = "node"'),
    ("eval_every = 0", "eval_every = 3"),
    ("[checkpoint]", "[parallel]\nstages = 1\npipelines = 2\nmin_nodes = 2\n\n[checkpoint]"),
)

FACTS = Facts(
    samples=20,
    validation_samples=4,
    context=8,
    vocabulary=256,
    token_dtype="uint8",
    steps=5,
    tokens_digest="",
    profile=Profile(layers=[], tied=False, family="gpt2"),
    artifacts={},
)


def test_two_nodes_train_on_what_only_they_have(job_file, start, command, tmp_path):
    coordinator = start(
        "coordinator", "start", str(job_file(*OWN)), "--listen", "127.0.0.1:0", "--state", str(tmp_path / "state")
    )
    link = coordinator.wait_for("listening")["link"]
    words = ("join", link, "--device", "cpu", "--cache")
    without = command(*words, str(tmp_path / "c0"), "--json")
    assert without.status != 0 and "was given none" in without.error["message"]
    assert "--data FOLDER" in without.error["hint"]
    nodes = []
    for name in ("red", "blue"):
        (tmp_path / name / "text").mkdir(parents=True)
        secret = f"{name} kept this to itself. "
        (tmp_path / name / "text" / "mine.txt").write_text(secret * (300 if name == "red" else 200))
        nodes.append(start(*words, str(tmp_path / f"cache-{name}"), "--data", str(tmp_path / name)))
    done = coordinator.wait_for("done")
    assert done["steps"] == 6 and done["samples"] == 6 * 8 and done["eval_loss"] > 0
    for node in nodes:
        node.process.wait(timeout=60)
    held = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert held and not [path for path in held if b"kept this to itself" in path.read_bytes()]


@pytest.mark.parametrize(
    "change, sentence",
    [
        (("text/*.txt", "../text/*.txt"), "below each node's --data FOLDER"),
        (("steps = 6", "epochs = 2"), "needs run.steps"),
        (("stages = 1", "stages = 2"), "needs parallel.stages = 1"),
    ],
)
def test_what_such_a_job_needs(job_file, change, sentence):
    with pytest.raises(JobError, match=sentence):
        load_job(job_file(*OWN, change))


def test_a_folder_without_a_file_of_the_job(job_file, tmp_path):
    job = load_job(job_file(*OWN))
    source = DataSource(job, FACTS, lambda name: b"", tmp_path / "cache")
    with pytest.raises(OwnDataUnusable, match=f"no file {tmp_path}"):  # what this says does not go to the coordinator
        source.private(opener(tmp_path), lambda event: None)
    with pytest.raises(FarflungError, match="is no folder"):
        opener(tmp_path / "nowhere")
    elsewhere = job.model_copy(update={"data": job.data.model_copy(update={"text": ["/etc/*"]})})
    with pytest.raises(FarflungError, match="which is not below"):
        opener(tmp_path)(elsewhere, FACTS, lambda name: b"", tmp_path / "cache", lambda event: None)


@pytest.mark.parametrize("pattern", ["/etc/passwd", "../a.txt", "text/../../a.txt", "~/a.txt", "s3://bucket/a"])
def test_patterns_that_look_elsewhere(pattern):
    assert leaves_its_folder(pattern) and not leaves_its_folder("text/**/a.txt")


class Numbers(Dataset):
    """Sample ids as samples."""

    samples, validation_samples = 5, 2

    def batch(self, ids):
        return list(ids), []


def test_every_own_sample_is_drawn_evenly():
    own = OwnData(Numbers(), FACTS)
    drawn, _ = own.batch(range(20))
    assert sorted(drawn) == sorted([0, 1, 2, 3, 4] * 4)
    held, _ = own.batch(range(own.samples, own.samples + own.validation_samples))
    assert held == [5, 6, 5, 6]
    nothing_held_out = Numbers()
    nothing_held_out.validation_samples = 0
    with pytest.raises(FarflungError, match="no validation sample"):
        OwnData(nothing_held_out, FACTS)
