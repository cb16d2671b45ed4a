"""What `farflung plan` returns, draws and refuses; jobs as tomllib reads them."""

import json
import re
import xml.dom.minidom
from pathlib import Path

import pytest
import tomllib

from farflung.cli.planning.memory import rows as memory_rows
from farflung.cli.planning.plan import run, table
from farflung.scheduler import Network, PlanError, plan
from farflung.scheduler.planning.volunteers import plan_volunteers
from farflung.scheduler.workloads.codecs import bits_of
from farflung.scheduler.workloads.jobs import workload_of
from farflung.scheduler.workloads.layers import stage_memory

JOB = """
[run]
steps = 10
[model]
family = "gpt2"
layers = 4
width = 128
heads = 4
context = 128
[data]
text = ["none.txt"]
[train]
batch = 32
microbatch = 4
[updates]
mode = "delta"
codec = "cocktail:random=0.1,top=0.2,bits=4"
overlap = 1
[activations]
forward = "aqsgd:bits=4"
backward = "int8"
"""
CLUSTER = {
    "regions": ["a", "b"],
    "devices_per_region": {"a": 3, "b": 2},
    "latency_ms": [[1, 40], [40, 1]],
    "bandwidth_gbps": [[1, 0.1], [0.05, 1]],
}


def files(folder):
    (folder / "cluster.json").write_text(json.dumps(CLUSTER))
    (folder / "job.toml").write_text(JOB)
    return folder / "cluster.json", folder / "job.toml"


def test_the_object_has_the_promised_keys_and_is_json(tmp_path):
    cluster, job = files(tmp_path)
    result = run(cluster, job, time_limit=5, picture=tmp_path / "plan.svg")
    assert set(result) >= {
        "pipelines", "stages", "microbatches", "spares", "codecs", "predicted", "dtfm_total_s", "search_s",
    }  # fmt: skip
    assert set(result["predicted"]) >= {"step_s", "tokens_per_second", "bubble", "bottleneck"}
    assert json.loads(json.dumps(result)) == result
    assert sum(result["microbatches"]) == 8
    assert len(table(result)) == 1 + len(result["pipelines"])
    text = (tmp_path / "plan.svg").read_text()
    xml.dom.minidom.parseString(text)
    assert "timeline of the simulated step" in text and "bottleneck" in text


def test_a_picture_has_the_name_of_what_it_is(tmp_path):
    with pytest.raises(PlanError, match=r"a picture is an SVG, which browsers show: name it plan\.svg"):
        run(*files(tmp_path), picture=tmp_path / "plan.png")


def test_what_each_stage_takes(tmp_path):
    cluster, job = files(tmp_path)
    result = run(cluster, job, stages=2, pipelines=2, time_limit=1, memory=True)
    header, *stages = memory_rows(result["memory"])
    assert header == ("stage", "layers", "weights", "gradient", "moments", "reference", "activations", "messages",
                      "on the device", "in main memory")  # fmt: skip
    assert len(stages) == 2 and json.loads(json.dumps(result)) == result
    for one, layers in zip(result["memory"], result["stages"], strict=True):
        assert one["layers"] == layers and one["moments"] == 2 * one["weights"] and one["host"] == one["messages"]
        parts = ("weights", "gradient", "moments", "reference", "activations")
        assert one["device"] == pytest.approx(sum(one[part] for part in parts), abs=5)
    assert run(cluster, time_limit=1, memory=True)["memory"][0]["reference"] == 0


def test_without_a_job_the_published_model_is_planned(tmp_path):
    cluster, _ = files(tmp_path)
    result = run(cluster, stages=2, pipelines=2, time_limit=2)
    assert result["stages"][-1][1] == 23
    assert result["dtfm_total_s"] > 0


def test_a_job_as_tomllib_gives_it():
    job = tomllib.loads(JOB)
    workload = workload_of(job)
    assert len(workload.layers) == 6
    assert workload.microbatches == 8 and workload.tied and workload.tokens_per_sample == 128
    assert workload.parameters == pytest.approx(4 * 12 * 128**2 + 2 * 256 * 128 + 128 * 128, rel=0.02)
    assert workload.update_bits < 0.2 and workload.activation_bits == pytest.approx(4.1, abs=0.1)
    network = Network.from_mapping(CLUSTER)
    assert plan(network, job, time_limit=2).layers == 6


def test_a_pretrained_folder_and_other_families(tmp_path):
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    config |= {"num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 32}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    workload = workload_of({"model": {"pretrained": "model"}}, tmp_path)
    block = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64
    assert workload.layers[1].parameters == block and not workload.tied


def test_adapters_alone_are_sent_and_moved_and_the_base_is_only_held(tmp_path):
    config = {"model_type": "gpt2", "n_layer": 3, "n_embd": 64, "n_head": 4, "vocab_size": 100, "n_positions": 32}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    whole = workload_of({"model": {"pretrained": "model"}}, tmp_path)
    tuned = workload_of({"model": {"pretrained": "model", "lora": {"rank": 4}}}, tmp_path)
    assert [layer.name for layer in tuned.layers] == ["block 0", "block 1", "block 2"]
    assert tuned.parameters == 3 * 4 * (64 + 3 * 64)  # c_attn alone
    assert sum(layer.frozen for layer in tuned.layers) == whole.parameters
    assert whole.tied and not tuned.tied
    assert stage_memory(tuned, 0, 2, 1) < stage_memory(whole, 0, 4, 1) - 8 * whole.parameters
    flops = [sum(layer.flops for layer in one.layers) for one in (tuned, whole)]
    assert flops[0] == pytest.approx(flops[1] * 2 / 3 + 2 * 32 * tuned.parameters)
    both = {"model": {"pretrained": "model", "lora": {"rank": 2, "targets": ["c_proj", "c_fc"]}}}
    assert workload_of(both, tmp_path).layers[0].parameters == 2 * (2 * 64 + 2 * 5 * 64)


@pytest.mark.parametrize(
    ("job", "says"),
    [
        ({"model": {"family": "bert", "layers": 2, "width": 8}}, "unknown model family 'bert'"),
        ({"model": {"family": "gpt2", "width": 8}}, "needs 'layers'"),
        ({"model": {"build": "a:b"}}, "built by code"),
        ({"model": {"pretrained": "nowhere"}}, "can't read"),
        ({"model": 3}, r"\[model\] of the job must be a table"),
        ({"model": {"layers": 2, "width": 8, "lora": {"targets": "q_proj"}}}, "no matrix of gpt2 is called 'q_proj'"),
        ({"model": {"layers": 2, "width": 8, "lora": 4}}, r"\[lora\] of the job must be a table"),
        ({"model": {"layers": 2, "width": 8}, "train": {"batch": "many"}}, "batch of the job must be a whole number"),
        ({"model": {"layers": 2, "width": 8}, "train": {"batch": 32, "microbatch": 5}}, "does not divide"),
        ({"model": {"layers": 2, "width": 8}, "parallel": {"stages": 9}}, "9 stages can't be: the model has 4 layers"),
        ({"model": {"layers": 2, "width": 8}, "updates": {"codec": "topk:0.1"}}, "is not key=value"),
    ],
)
def test_bad_jobs(job, says):
    with pytest.raises(PlanError, match=says):
        workload_of(job)


def test_bits_of_codecs():
    assert bits_of("none", plain=16) == 16 and bits_of("bf16") == pytest.approx(16, rel=1e-3)
    assert bits_of("int8") == pytest.approx(8.1, abs=0.1)
    assert bits_of("cocktail:random=0.1,top=0.2,bits=4") == pytest.approx(0.16, abs=0.02)


SLOW = {
    "regions": ["a"],
    "devices_per_region": {"a": 8},
    "latency_ms": [[20]],
    "bandwidth_gbps": [[0.01]],
    "devices": [{"region": "a", "tflops": 0.01}] * 8,
}


def test_spares_are_told_what_one_change_of_the_job_would_do(tmp_path):
    """Rounds of every step over 10 Mbit/s leave machines out that train where rounds are rare."""
    _, job = files(tmp_path)
    job.write_text(JOB.split("[updates]")[0] + '[parallel]\nstages = 1\n[updates]\nmode = "delta"\n')
    (tmp_path / "slow.json").write_text(json.dumps(SLOW))
    made = run(tmp_path / "slow.json", job, time_limit=120)
    assert made["spares"]
    found = re.fullmatch(r"with updates\.(.+) all of 8 train: (.+) times the tokens", made["instead"])
    assert found is not None
    job.write_text(job.read_text() + found[1] + "\n")
    other = run(tmp_path / "slow.json", job, time_limit=120)
    assert not other["spares"] and "instead" not in other
    times = other["predicted"]["tokens_per_second"] / made["predicted"]["tokens_per_second"]
    assert float(found[2]) == pytest.approx(times, rel=0.06)


def test_a_missing_job_file(tmp_path):
    cluster, _ = files(tmp_path)
    with pytest.raises(PlanError, match="there is no job file"):
        run(cluster, tmp_path / "nowhere.toml")


@pytest.fixture
def benchmarks_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))


@pytest.mark.usefixtures("benchmarks_importable")
def test_volunteers_are_planned_in_neighbourhoods():
    from benchmarks.scale import draw_volunteers, job

    volunteers = draw_volunteers(150)
    made = plan_volunteers(volunteers, job(150), time_limit=0.5)
    assert set(made.nodes) | set(made.spares) == {device.name for device in volunteers.devices}
    assert sum(made.microbatches) == job(150).microbatches
    for fractions in made.publishers:
        assert sum(fractions) == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.usefixtures("benchmarks_importable")
def test_the_published_measurements_are_predicted():
    from benchmarks.predict_paper import report

    file = Path(__file__).resolve().parents[3] / "shared" / "reference" / "measured_iterations.json"
    if not file.exists():
        pytest.skip("the table of measured iterations is not on this machine")
    result = report(json.loads(file.read_text()))
    assert result["mean_absolute_error"] <= 0.10
    assert result["worst"] <= 0.25
    assert result["lowest_rank_correlation"] >= 0.95


OPT = {"model_type": "opt", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 64,
       "vocab_size": 300, "max_position_embeddings": 64, "word_embed_proj_dim": 32}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "config", "says"),
    [
        ({"[data]": '[parallel]\ninside = "tp"\n[data]'}, None, "inside = \"tp\": the model family 'gpt2' has no plan"),
        ({"[data]": "vocabulary = 100\n[data]"}, None, "model.vocabulary = 100 is less than the 256 tokens"),
        ({}, OPT | {"vocab_size": 256}, "the attention of the model family 'opt' can't tell several conversations"),
        ({}, {"model_type": "bert", "vocab_size": 256, "num_hidden_layers": 2, "hidden_size": 8}, "bert"),
        ({"[train]": "[model.lora]\nrank = 2\ntargets = ['nothing']\n[train]"}, OPT | {"vocab_size": 256}, "nothing"),
        ({"context = 128": "context = 65"}, OPT | {"vocab_size": 256}, "more than the 64 positions"),
    ],
)
def test_what_a_start_refuses_of_the_model_a_plan_refuses(tmp_path, changes, config, says):
    cluster, job = files(tmp_path)
    text = JOB
    if config is not None:
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "config.json").write_text(json.dumps(config))
        shape = 'family = "gpt2"\nlayers = 4\nwidth = 128\nheads = 4\ncontext = 128\n'
        context = "context = 128\n" if "context = 128" in changes else ""
        text = text.replace(shape, f'pretrained = "model"\n{context}')
        text = text.replace('text = ["none.txt"]', 'chat = ["c.jsonl"]')
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    job.write_text(text)
    with pytest.raises(PlanError, match=re.escape(says)):
        run(cluster, job, time_limit=1)
