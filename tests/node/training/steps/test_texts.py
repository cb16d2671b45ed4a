"""A text that a pipeline writes while it trains: of the weights of one step, and training does not notice."""

import itertools
import json

import pytest
import torch
import transformers
from header_bodies import body_of
from plain_lora import save_base
from windows import Windows, facts_of, wait_until

from farflung.job.schema import Job
from farflung.node.generation.checkpoint import find_checkpoint
from farflung.node.generation.export import export
from farflung.node.generation.layered import tokens_by_layers
from farflung.proto import control_pb2, data_pb2
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

STEPS = 24
PROMPT = [3, 1, 4]
TWO_BY_TWO = Plan(pipelines=(("a", "b"), ("c", "d")), stages=((0, 1), (2, 3)), microbatches=(3, 3))
LEFT = Plan(pipelines=(("a", "b"),), stages=((0, 1), (2, 3)), microbatches=(6,))


def start(mode, plan=TWO_BY_TWO, saves=STEPS, **updates):
    job = Job.model_validate(
        {
            "run": {"name": "texts", "seed": 3, "steps": STEPS},
            "model": {"family": "gpt2", "layers": 2, "width": 16, "heads": 2, "context": 8, "tie": True},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 12, "microbatch": 2, "learning_rate": 3e-3, "eval_every": 0},
            "updates": {"mode": mode, "block": 256, **updates},
            "checkpoint": {"every": saves},
        }
    )
    facts = facts_of(samples=90, validation=10, context=8, vocabulary=17, steps=STEPS)
    hub, data = Hub(job, facts), Windows(facts)
    for name in plan.nodes:
        hub.start(name, data)
    hub.begin(plan, plan.nodes, checkpoint=0)
    return hub


def listen(hub):
    """What nodes report of texts from now on, in order: (node, report). Their warnings go on to the hub too."""
    heard = []
    for name, wire in hub.wires.items():

        def report(said, name=name, say=wire.report):
            if said.HasField("written"):
                heard.append((name, said.written))
                return
            if said.HasField("warning"):
                heard.append((name, said.warning))
            say(said)

        wire.report = report
    return heard


def write(hub, heard, tokens, number=1, temperature=0.0, seed=7):
    """(the tokens, the step of their weights) of a text that node a is asked for."""
    order = control_pb2.Write(
        number=number, view=hub.view, prompt=PROMPT, tokens=tokens, temperature=temperature, seed=seed
    )
    hub.order("a", write=order)
    mine = lambda: [said for _, said in heard if getattr(said, "number", 0) == number]  # noqa: E731
    wait_until(lambda: len(mine()) >= tokens or any(said.failed for said in mine()))
    assert not any(said.failed for said in mine())
    (step,) = {said.step for said in mine()}
    assert all(said.round for said in mine())
    return [said.token for said in mine()], step


def checkpoint_of(hub, folder, step):
    """The checkpoint that the nodes sent at the end of a step, as the coordinator keeps it."""
    stages = len(hub.plan.stages)
    wait_until(lambda: sum(number == step for number, _ in hub.shards) == stages)
    place = folder / f"step-{step:08d}"
    place.mkdir(exist_ok=True)
    for (number, file), (payload, _) in list(hub.shards.items()):
        if number == step:
            (place / file).write_bytes(payload)
    facts = hub.facts.model_copy(update={"artifacts": {}})
    manifest = {"step": step, "files": {}, "job": hub.job.model_dump(mode="json"), "facts": facts.model_dump_json()}
    (place / "manifest.json").write_text(json.dumps(manifest))
    return find_checkpoint(folder, step)


def by_layers(checkpoint, tokens, temperature=0.0, seed=7):
    return list(itertools.islice(tokens_by_layers(checkpoint, PROMPT, seed, temperature), tokens))


@pytest.mark.parametrize(
    ("mode", "plan", "updates"),
    [
        ("gradient", TWO_BY_TWO, {}),
        ("delta", TWO_BY_TWO, {"codec": "cocktail:random=0.5,top=0.5,bits=4", "overlap": 1}),
        ("delta", LEFT, {"codec": "int8", "every": 3, "overlap": 2, "outer": "nesterov:lr=0.7,momentum=0.9"}),
    ],
)
def test_a_text_is_of_the_weights_of_one_step(tmp_path, mode, plan, updates):
    hub = start(mode, plan, 1, **updates)
    heard = listen(hub)
    wait_until(lambda: hub.trainers["a"].step >= 6)  # the first round is applied in step 5 where it is latest
    greedy, step = write(hub, heard, 5)
    assert step > 6
    exported = transformers.AutoModelForCausalLM.from_pretrained(
        export(checkpoint_of(hub, tmp_path, step).folder, tmp_path / "out")
    )
    theirs = exported.generate(torch.tensor([PROMPT]), max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert greedy == theirs[0, 3:].tolist()
    drawn, step = write(hub, heard, 12, number=2, temperature=0.8)  # longer than the context
    assert drawn == by_layers(checkpoint_of(hub, tmp_path, step), 12, 0.8)
    wait_until(lambda: all(trainer.training.view.is_done for trainer in hub.trainers.values()))
    late, step = write(hub, heard, 4, number=3)
    assert step == STEPS
    assert late == by_layers(checkpoint_of(hub, tmp_path, step), 4)
    hub.finish(plan.nodes)
    assert not hub.errors and not hub.outcome.warnings


@pytest.mark.parametrize("mode", ["gradient", "delta"])
def test_training_does_not_notice(mode):
    found = []
    for texts in (False, True):
        hub = start(mode, LEFT)
        heard = listen(hub)
        if texts:
            wait_until(lambda hub=hub: hub.trainers["a"].step >= 2)
            for number in (1, 2):
                write(hub, heard, 10, number)
            hub.order("a", write=control_pb2.Write(number=3, view=hub.view, prompt=PROMPT, tokens=10**6))
            wait_until(lambda heard=heard: any(said.number == 3 for _, said in list(heard)))
            hub.order("a", write=control_pb2.Write(number=3, view=hub.view))  # no more of it
            wait_until(lambda hub=hub: not any(one.training.texts[0]._number for one in hub.trainers.values()))
        hub.finish(LEFT.nodes)
        assert not hub.errors and not hub.outcome.warnings
        found.append({file: payload for (step, file), (payload, _) in hub.shards.items() if step == STEPS})
    assert len(found[0]) == 2 and found[0] == found[1]


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # peft reads it
def test_a_text_of_a_model_with_adapters(tmp_path):
    base = save_base(tmp_path / "base", "llama", 29)
    job = Job.model_validate(
        {
            "run": {"name": "texts", "seed": 3, "steps": STEPS},
            "model": {"pretrained": str(base), "context": 8, "lora": {"rank": 2}},
            "data": {"text": ["none.txt"]},
            "train": {"batch": 12, "microbatch": 2, "learning_rate": 0.02, "eval_every": 0},
            "checkpoint": {"every": 1},
        }
    )
    files = {f"model/{path.name}": path.read_bytes() for path in base.iterdir()}
    facts = facts_of(90, 10, 8, 29, STEPS).model_copy(update={"artifacts": dict.fromkeys(files, "")})
    hub = Hub(job, facts, files)
    plan = Plan(pipelines=(("a", "b"),), stages=((0, 0), (1, 1)), microbatches=(6,))
    for name in plan.nodes:
        hub.start(name, Windows(facts))
    hub.begin(plan, plan.nodes, checkpoint=0)
    heard = listen(hub)
    wait_until(lambda: hub.trainers["a"].step >= 5)
    greedy, step = write(hub, heard, 8)
    assert greedy == by_layers(checkpoint_of(hub, tmp_path, step), 8)
    hub.finish(plan.nodes)
    assert not hub.errors


def test_a_text_ends_with_its_view(tmp_path):
    hub = start("gradient", saves=1)
    heard = listen(hub)
    hub.order("a", write=control_pb2.Write(number=1, view=hub.view, prompt=PROMPT, tokens=10**6))
    wait_until(lambda: heard)
    hub.kill("d")
    hub.change(LEFT, ["a", "b", "c"])
    said = len(heard)
    greedy, step = write(hub, heard, 5, number=2)
    assert greedy == by_layers(checkpoint_of(hub, tmp_path, step), 5)
    assert all(one.number == 2 for _, one in heard[said:])
    hub.finish(["a", "b"])
    assert not hub.errors


SPOILT = {
    "begin": lambda header: (
        header.kind == data_pb2.TEXT_BEGIN and setattr(header.text_begin, "step", header.text_begin.step + 9)
    ),
    "shape": lambda header: header.kind == data_pb2.TEXT and body_of(header).shape.append(10**6),
    "size": lambda header: header.kind == data_pb2.TEXT and body_of(header).shape.__setitem__(1, 7),
    "count": lambda header: header.kind == data_pb2.TEXT and setattr(header.text, "done", 5),
    "token": lambda header: header.kind == data_pb2.TEXT_TOKEN and setattr(header.text_token, "token", 17),
}


@pytest.mark.parametrize("what", SPOILT)
def test_what_makes_no_sense_is_refused_and_named(what):
    hub = start("gradient", LEFT)
    heard = listen(hub)

    def tamper(sender, to, header, data):
        SPOILT[what](header)
        return data

    hub.tamper = tamper
    hub.order("a", write=control_pb2.Write(number=1, view=hub.view, prompt=[17], tokens=4))
    hub.order("a", write=control_pb2.Write(number=2, view=hub.view, prompt=PROMPT, tokens=4))
    wait_until(lambda: len(heard) == 2)
    outcome = hub.finish(["a", "b"])
    assert heard[0][1] == control_pb2.Written(number=1, failed="the prompt is not of the model's tokens")
    refused = heard[1][1]
    assert refused.node == ("b" if what == "token" else "a") and refused.message.startswith("a TEXT")
    assert refused.refused and len(heard) == 2
    assert not hub.errors
    assert sorted(outcome.losses) == list(range(1, STEPS + 1))


def test_a_node_without_room_says_so(monkeypatch):
    hub = start("gradient", LEFT)
    heard = listen(hub)
    monkeypatch.setattr("farflung.node.training.steps.texts.free_memory", lambda device: 1000)
    hub.order("a", write=control_pb2.Write(number=1, view=hub.view, prompt=PROMPT, tokens=4))
    wait_until(lambda: heard)
    assert "has no room for a second copy of its stage" in heard[0][1].failed
    hub.finish(["a", "b"])
    assert not hub.errors
