"""The job file: every mistake is named with file, line, key, what is allowed, and the nearest word."""

import json
from pathlib import Path

import pytest

from farflung.job.changes import refused_changes
from farflung.job.checks.counts import check_facts
from farflung.job.checks.whole import job_mistakes
from farflung.job.data.facts import Facts, LayerProfile, Profile
from farflung.job.files import load_job
from farflung.job.key_lines import key_lines
from farflung.job.schema import Job
from farflung.proto.errors import JobError

GOOD = """\
[run]
seed = 1
epochs = 5

[model]
family = "gpt2"
layers = 4
width = 128
heads = 4
context = 128

[data]
text = ["*.txt"]

[train]
batch = 32
microbatch = 4
optimizer = "adamw"
learning_rate = 1e-3
warmup_steps = 50
decay = "cosine"
clip = 1.0
precision = "fp32"
recompute = false
eval_every = 50

[parallel]
stages = "auto"
pipelines = "auto"
schedule = "1f1b"

[updates]
mode = "delta"
every = 1
overlap = 1
pattern = "auto"
codec = "cocktail:random=0.1,top=0.2,bits=4"
dense_rounds = 20
outer = "average"

[activations]
forward = "aqsgd:bits=4"
backward = "int8"

[checkpoint]
every = 100
keep = 3
to = "checkpoints"
"""


MASKED = ("every = 1\n", "every = 1\nsecure = true\n")


@pytest.fixture
def write(tmp_path):
    (tmp_path / "a.txt").write_text("to be or not to be")

    def write(*changes, text=GOOD):
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "play.toml"
        path.write_text(text)
        return path

    return write


def test_good_job(write, tmp_path):
    job = load_job(write())
    assert job.run.name == "play"
    assert job.data.text == [str(tmp_path / "*.txt")]
    assert job.train.betas == (0.9, 0.95)
    assert job.train.microbatches == 8
    assert Job.model_validate_json(job.model_dump_json()) == job
    assert job.steps(samples=33) == 6


MISTAKES = [
    ([("optimizer =", "optimiser =")], "play.toml:18: unknown key train.optimiser; did you mean optimizer?"),
    ([("[train]", "[trane]")], "unknown table [trane]; did you mean train?"),
    ([("batch = 32", 'batch = "32"')], 'play.toml:16: train.batch = "32" is wrong: allowed is a whole number'),
    ([("seed = 1", "seed = 1.5")], "play.toml:2: run.seed"),
    ([("recompute = false", "recompute = 0")], "allowed is true, false, or"),
    (
        [("microbatch = 4", "microbatch = 5")],
        "train.microbatch = 5 does not divide train.batch = 32; allowed near it: 2, 4, 8",
    ),
    ([('stages = "auto"', "stages = 7")], "parallel.stages = 7 is more than the model's 6 layers"),
    ([('stages = "auto"', 'stages = "two"')], 'allowed is "auto" or a whole number'),
    ([('pipelines = "auto"', 'inside = "pp"')], "parallel.inside: 'pp' is not one of ddp, fsdp, tp, fsdp+tp"),
    (
        [('pipelines = "auto"', 'inside = "fsdp"'), ("clip = 1.0", "compile = true")],
        'parallel.inside = "fsdp" does not go with train.compile yet; write compile = false',
    ),
    ([('pipelines = "auto"', "pipelines = 9")], "parallel.pipelines = 9 is more than the 8 microbatches"),
    ([("epochs = 5", "epochs = 1")], "activations.forward: aqsgd"),
    ([("epochs = 5", "")], "[run] needs epochs or steps, it has neither"),
    ([("epochs = 5", "epochs = 5\nsteps = 5")], "[run] needs epochs or steps, not both"),
    ([("*.txt", "*.text")], "*.text"),
    ([('family = "gpt2"', 'family = "gtp2"')], "model.family: 'gtp2' is not one of gpt2, llama"),
    ([('family = "gpt2"', "")], "exactly one of family, pretrained, build, parameters; it has none"),
    ([("width = 128", "width = 130")], "model.width = 130 is not a multiple of model.heads = 4"),
    ([("heads = 4", "")], "model.heads is missing"),
    ([("heads = 4", "heads = 4\nkv_heads = 2")], "model.kv_heads has no meaning in the family gpt2"),
    ([('family = "gpt2"', 'pretrained = "nowhere"')], "is not a folder"),
    ([('text = ["*.txt"]', 'text = ["*.txt"]\ntokenizer = "nowhere"')], "is no folder"),
    ([('text = ["*.txt"]', 'text = ["*.txt"]\nwhere = "node"')], 'data.where = "node" needs parallel.stages = 1'),
    ([('text = ["*.txt"]', 'build = "a:b"')], "data.build goes with model.build"),
    (
        [('"adamw"', '"onebit_adam"')],
        "train.optimizer = 'onebit_adam' averages momentum every step; it needs updates.mode",
    ),
    (
        [('"adamw"', '"onebit_adam"'), ('"delta"', '"gradient"'), ("dense_rounds = 20", "")],
        "train.optimizer = 'onebit_adam' needs updates.dense_rounds",
    ),
    ([('"adamw"', '"zero_one_adam"')], "train.optimizer: 'zero_one_adam' takes steps of its own between exchanges"),
    (
        [('"adamw"', '"mine:make"'), ('"delta"', '"gradient"'), ("dense_rounds = 20", "")],
        "train.optimizer = 'mine:make': nobody knows whether its steps have the same bits",
    ),
    ([('"adamw"', '"adamv"')], "did you mean 'adamw'?"),
    ([('"1f1b"', '"interleave"')], "did you mean 'interleaved'"),
    ([('pattern = "auto"', 'pattern = "gossip"')], "no join by replay (who joins takes a neighbour's weights)"),
    ([('pattern = "auto"', 'pattern = "async"')], "to accept that write agreed = false"),
    ([('pattern = "auto"', 'pattern = "gosip"')], "did you mean 'gossip'?"),
    ([('pattern = "auto"', 'pattern = "gossip"\nagreed = false')], "updates.dense_rounds = 20 does not go with"),
    ([('pattern = "auto"', 'pattern = "async"\nagreed = false')], "updates.overlap = 1 does not go with"),
    ([('"average"', '"nestorov:lr=0.7"')], "updates.outer: 'nestorov:lr=0.7' is not one of average"),
    ([('"average"', '"adam"')], "updates.outer: 'adam' is not one of average"),
    (
        [('"average"', '"nesterov"'), ('mode = "delta"', 'mode = "gradient"')],
        "updates.outer = 'nesterov': mode gradient has the one optimiser of [train]",
    ),
    ([("overlap = 1", "overlap = 2")], "updates.overlap = 2 is more than the 1 step(s) between rounds"),
    (
        [("overlap = 1", "overlap = 3\nfragments = 2"), ("every = 1\n", "every = 4\n")],
        "updates.overlap = 3 is more than the 2 step(s) between rounds",
    ),
    ([("every = 1\n", "every = 4\nfragments = 3\n")], "updates.fragments = 3 does not divide updates.every = 4"),
    (
        [('mode = "delta"', 'mode = "gradient"\nfragments = 2'), ("overlap = 1", "overlap = 0")],
        "updates.fragments = 2: a step of mode gradient",
    ),
    ([('mode = "delta"', 'mode = "gradient"')], "updates.overlap = 1: a step of mode gradient"),
    ([('mode = "delta"', 'mode = "delta"\nagreed = false')], "updates.agreed = false: updates.pattern = 'auto' agrees"),
    ([('to = "checkpoints"', 'to = "memory://x"')], "memory:// ends with the coordinator"),
    ([('to = "checkpoints"', 'to = "file:///srv/x"')], "write the folder itself: /srv/x"),
    ([('to = "checkpoints"', 'to = "sftp://me:secret@host/x"')], "checkpoint.to has a password"),
    ([('to = "checkpoints"', 'options = {key = "x"}')], "checkpoint.options belong to an address"),
    (
        [("clip = 1.0", "compile = true"), ("[model]", "[model]\ndropout = 0.1")],
        "not yet: train.compile where masks of dropout",
    ),
    ([("clip = 1.0", "dropout = 0.1")], "unknown key train.dropout; it belongs into [model]"),
    ([("seed = 1", "seed = one")], "is not TOML"),
    ([("seed = 1", f"seed = {'9' * 5000}")], "has a whole number of thousands of digits"),
    ([MASKED], "updates.dense_rounds = 20 does not go with updates.secure"),
    ([MASKED, ("dense_rounds = 20", "robust = 'clip'")], "which updates.secure hides"),
    (
        [MASKED, ("cocktail:random=0.1,top=0.2,bits=4", "int8")],
        "updates.codec = 'int8' does not go with updates.secure",
    ),
    ([MASKED, ("cocktail:random=0.1,top=0.2,bits=4", "intsgd:rule=max")], "a masked number has to be whole"),
    ([MASKED, ('pattern = "auto"', 'pattern = "all_to_all"')], "updates.pattern = 'all_to_all' does not go with"),
    ([MASKED, ('pattern = "auto"', 'pattern = "gossip"\nagreed = false')], "'gossip' does not go with updates.secure"),
    ([MASKED, ('pipelines = "auto"', "pipelines = 2")], "updates.secure needs 3 pipelines or more"),
    ([MASKED, ("microbatch = 4", "microbatch = 16")], "and here are at most 2"),
]


@pytest.mark.parametrize(("changes", "expected"), MISTAKES, ids=[expected[:40] for _, expected in MISTAKES])
def test_mistakes(write, changes, expected):
    with pytest.raises(JobError) as caught:
        load_job(write(*changes))
    assert expected in caught.value.message
    assert "play.toml" in caught.value.message
    assert caught.value.status == 2


def test_all_mistakes_at_once_in_file_order(write):
    with pytest.raises(JobError) as caught:
        load_job(write(("batch = 32", "batch = 0"), ("keep = 3", "kep = 3"), ("seed = 1", "sead = 1")))
    lines = caught.value.message.splitlines()
    assert [line.split(":")[1] for line in lines] == ["2", "16", "47"]


def test_missing_file(tmp_path):
    with pytest.raises(JobError, match="there is no job file"):
        load_job(tmp_path / "none.toml")


def test_a_folder_is_no_job_file(tmp_path):
    with pytest.raises(JobError) as caught:
        load_job(tmp_path)
    assert caught.value.message == f"{tmp_path} is a folder, not a job file"
    assert "job.toml" in caught.value.hint


def test_codec_check_is_injected(write):
    asked = []

    def check(spec, role):
        asked.append((spec, role))
        if spec == "int8":
            raise ValueError("no such codec; did you mean int4?")

    with pytest.raises(JobError, match=r"play.toml:43: activations.backward = 'int8': no such codec"):
        load_job(write(), check)
    assert asked[0] == ("cocktail:random=0.1,top=0.2,bits=4", "update")
    assert {role for _, role in asked} == {"update", "activation", "activation_gradient"}


def test_pretrained_folder(write, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    change = [('family = "gpt2"\nlayers = 4\nwidth = 128\nheads = 4\n', 'pretrained = "model"\n')]
    with pytest.raises(JobError, match=r"has no config\.json"):
        load_job(write(*change))
    (folder / "config.json").write_text(json.dumps({"hidden_size": 8}))
    with pytest.raises(JobError, match="names no model_type"):
        load_job(write(*change))
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 2}))
    with pytest.raises(JobError, match=r"has no \*\.safetensors"):
        load_job(write(*change))
    (folder / "model.safetensors").write_bytes(b"")
    assert load_job(write(*change)).model.pretrained == str(folder)
    with pytest.raises(JobError, match="more than the model's 4 layers"):
        load_job(write(*change, ('stages = "auto"', "stages = 5")))
    with pytest.raises(JobError, match=r"model\.layers cannot be given with model\.pretrained"):
        load_job(write(change[0], ("context = 128", "context = 128\nlayers = 3")))


def test_key_lines_through_arrays_and_strings():
    text = '[a]\nx = [\n  "k = 1",  # [b]\n]\ny = """\nz = 2\n"""\n[b.c]\n"q" = {r = 1}\nd.e = 1\n'
    assert key_lines(text) == {
        ("a",): 1,
        ("a", "x"): 2,
        ("a", "y"): 5,
        ("b", "c"): 8,
        ("b", "c", "q"): 9,
        ("b", "c", "d", "e"): 10,
    }


def test_default_microbatch_divides_batch():
    base = {"run": {"steps": 1}, "model": {"build": "a:b"}, "data": {"build": "a:c"}}
    for batch, expected in [(32, 4), (6, 3), (5, 1), (1, 1)]:
        job = Job.model_validate({**base, "train": {"batch": batch}})
        assert job.train.microbatch == expected
        assert not list(job_mistakes(job))


def test_facts_checks(write):
    job = load_job(write(("epochs = 5", "steps = 5"), ('stages = "auto"', "stages = 6")))
    layers = [
        LayerProfile(name=str(i), parameters=1, flops_per_sample=1, activation_elements_per_sample=1) for i in range(6)
    ]
    facts = Facts(
        samples=80,
        validation_samples=1,
        context=128,
        vocabulary=256,
        token_dtype="uint8",
        steps=5,
        tokens_digest="",
        profile=Profile(layers=layers, tied=True, family="gpt2"),
        artifacts={},
    )
    check_facts(job, facts)
    with pytest.raises(JobError, match="aqsgd"):
        check_facts(job, facts.model_copy(update={"samples": 81}))
    with pytest.raises(JobError, match="more than the model's 5 layers"):
        check_facts(job, facts.model_copy(update={"profile": Profile(layers=layers[:5], tied=True, family="gpt2")}))


def test_changes_on_resume(write):
    old = load_job(write())
    allowed = load_job(
        write(("epochs = 5", "epochs = 9"), ("1e-3", "2e-3"), ("keep = 3", "keep = 1"), ('"int8"', '"none"'))
    )
    assert refused_changes(old, allowed) == []
    other = load_job(write(("batch = 32", "batch = 64"), ("width = 128", "width = 256")))
    assert refused_changes(old, other) == ["model.width (128 -> 256)", "train.batch (32 -> 64)"]


def test_example_of_the_interface_is_read(write):
    assert isinstance(load_job(Path(write())), Job)
