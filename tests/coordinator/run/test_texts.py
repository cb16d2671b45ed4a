"""A text that nodes write: who may ask for it, what is said as it grows, and what ends it."""

import asyncio
import json

import pytest

from farflung.coordinator.run.people.texts import CONTEXT, LONGEST_LETTER, Text, check_wanted, ends_of
from farflung.coordinator.trust.links import issue
from farflung.job.data.tokenizer import Bytes
from farflung.job.data.tokenizer_folder import load_tokenizer
from farflung.job.schema import Job
from farflung.node.generation.byte_tokenizer import write_byte_tokenizer
from farflung.proto import control_pb2 as pb
from farflung.proto.errors import Refused


def request(**fields):
    return pb.GenerateRequest(**{"prompt": "To be", "tokens": 4, "temperature": 0.8, "seed": 3, **fields})


def job_of(**model):
    shape = {"family": "gpt2", "layers": 2, "width": 8, "heads": 2, "context": 16}
    return Job.model_validate({"model": model or shape, "data": {"text": ["none"]}})


def text_of(tell=lambda name, order: None, tokenizer=None, ends=frozenset(), **fields):
    parts = {"tokenizer": tokenizer or Bytes(), "ends": ends, "step_s": 0.1, "tell": tell}
    return Text(1, 5, ("a", "b"), request=request(**fields), **parts)


def wrote(token, number=1):
    return pb.Written(number=number, token=token, step=7, round=6)


async def test_a_text_comes_as_it_grows_and_only_from_its_first_node():
    told = []
    text = text_of(lambda name, order: told.append((name, order.write)), tokens=5)
    parts = text.parts()
    waiting = asyncio.ensure_future(anext(parts))
    await asyncio.sleep(0)
    [(name, order)] = told
    assert name == "a" and bytes(order.prompt) == b"To be" and (order.number, order.view, order.tokens) == (1, 5, 5)
    text.wrote("b", wrote(1))  # not the first node
    text.wrote("c", pb.Written(number=1, failed="a lie"))  # not of the pipeline
    text.wrote("a", wrote(1, number=9))  # another text
    for token in "n\N{SLIGHTLY SMILING FACE}".encode():
        text.wrote("a", wrote(token))
    for _ in range(1000):
        text.wrote("a", wrote(65))  # more than was asked for
    found = [await waiting, *[part async for part in parts]]
    assert [part.text for part in found] == ["n", "\N{SLIGHTLY SMILING FACE}"]
    assert {(tuple(part.nodes), part.step, part.round) for part in found} == {(("a", "b"), 7, 6)}
    assert text._heard.empty()
    text.end()
    assert told[-1][1] == pb.Write(number=1, view=5)


@pytest.mark.parametrize("token", [65, 0x80, 1 << 31])
async def test_a_burst_of_tokens_costs_each_of_them_little_and_leaves_others_their_turn(token):
    """A member may send all tokens of a long text at once, and letters that never end."""

    class Counts(Bytes):
        most = 0

        def text(self, tokens):
            self.most = max(self.most, len(tokens))
            return super().text(tokens)

    counts, turns = Counts(), []
    text = text_of(tokenizer=counts, tokens=2000, prompt="x" * 50_000)

    async def other():
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(other())
    for _ in range(2000):
        text.wrote("a", wrote(token))
    found = "".join([part.text async for part in text.parts()])
    beside.cancel()
    assert len(found) == (0 if token > 255 else 2000) and counts.most <= CONTEXT + 2 * LONGEST_LETTER
    assert len(turns) >= 2000


@pytest.mark.parametrize("said", ["na\u00efve \U0001f642 caf\u00e9", "a" * 40, "\u6f22\u5b57" * 20])
async def test_what_comes_in_parts_is_the_text(said):
    whole = list(said.encode())
    text = text_of(tokens=len(whole), prompt="\u00e9" * 30)
    for token in whole:
        text.wrote("a", wrote(token))
    assert "".join([part.text async for part in text.parts()]) == said


async def test_what_ends_a_text():
    text = text_of(ends=frozenset({0}))
    text.wrote("a", wrote(65))
    text.wrote("a", wrote(0))
    assert "".join([part.text async for part in text.parts()]) == "A"

    text = text_of()
    text.wrote("a", wrote(65))
    text.wrote("b", pb.Written(number=1, failed="no room\x1b[2J"))
    found = [part async for part in text.parts()]
    assert found[0].text == "A"
    assert found[1].refused.startswith("the text broke off: b cannot write it: no room [2J\ntype it again")

    text = text_of()
    text._patience = 0.01
    assert "a sent no token within" in [part async for part in text.parts()][-1].refused


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": "x" * 100_001}, "letters"),
        ({"tokens": 0}, "0 tokens"),
        ({"tokens": 10**6}, "tokens cannot be added"),
        ({"temperature": -1.0}, "no temperature"),
        ({"temperature": float("nan")}, "no temperature"),
    ],
)
def test_what_nobody_can_write_is_refused(fields, why):
    with pytest.raises(Refused, match=why):
        check_wanted(request(**fields), job_of())


def test_runs_without_a_text_are_refused():
    job = job_of()
    with pytest.raises(Refused, match="no language model"):
        check_wanted(
            request(), job.model_copy(update={"model": job.model.model_copy(update={"build": "digits:model"})})
        )
    with pytest.raises(Refused, match="weights of their own"):
        check_wanted(request(), job.model_copy(update={"updates": job.updates.model_copy(update={"agreed": False})}))


@pytest.mark.parametrize(("stored", "ends"), [(None, set()), (5, {5}), ([5, 6], {5, 6})])
def test_a_model_folder_says_what_ends_a_text(tmp_path, stored, ends):
    assert ends_of(job_of(), Bytes()) == set()
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 9}))
    assert ends_of(job_of(pretrained=str(tmp_path)), Bytes()) == {9}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": stored}))
    assert ends_of(job_of(pretrained=str(tmp_path)), Bytes()) == ends


def test_a_tokenizer_both_ways(tmp_path):
    write_byte_tokenizer(tmp_path, 16)
    for tokenizer in (Bytes(), load_tokenizer(str(tmp_path))):
        assert tokenizer.prompt("naïve") == list("naïve".encode())
        assert tokenizer.text(list("naïve".encode())) == "naïve"
        assert tokenizer.text([65, 2**31]) == "A"


async def test_an_operator_gets_one_at_a_time_until_the_view_ends(cluster):
    coordinator = cluster.coordinator(
        cluster.job(("steps = 12", "steps = 60000"), ("every = 4\nkeep", "every = 90000\nkeep"))
    )
    link = await coordinator.link
    nodes = {"a": (some := await cluster.node(link, "a"))}
    operator = issue(coordinator.state, operator=True)

    async def answers(link, **fields):
        wanted = request(run=link.run, ticket=link.ticket, **fields)
        async for part in some.stub.Generate(wanted, timeout=120):
            yield part

    async def asked(number):
        while True:
            for node in nodes.values():
                for order in node.orders:
                    if order.write.number == number:
                        return node, order.write
            await asyncio.sleep(0.01)

    assert "does not train now" in (await anext(answers(operator))).refused
    nodes |= {name: await cluster.node(link, name) for name in ("b", "c", "d")}
    await coordinator.event("step", step=2)
    assert "commands nobody" in (await anext(answers(link))).refused
    assert "0 tokens" in (await anext(answers(operator, tokens=0))).refused

    call = answers(operator)
    waiting = asyncio.ensure_future(anext(call))
    first, order = await asked(1)
    assert bytes(order.prompt) == b"To be" and order.tokens == 4 and order.view == first.view.number
    assert first.name == first.plan.pipelines[0][0]
    assert "another text" in (await anext(answers(operator))).refused
    for token in b"gone":
        await first.say(written=pb.Written(number=1, token=token, step=9, round=9))
    parts = [await waiting, *[part async for part in call]]
    assert "".join(part.text for part in parts) == "gone"
    assert (list(parts[0].nodes), parts[0].step) == (list(first.plan.pipelines[0]), 9)

    call = answers(operator)
    waiting = asyncio.ensure_future(anext(call))
    first, order = await asked(2)
    await first.say(written=pb.Written(number=2, token=65, step=11, round=11))
    assert (await waiting).text == "A"
    gone = nodes[first.plan.pipelines[0][1]]
    await gone.die()
    [broken] = [part async for part in call]
    assert broken.refused.startswith("the text broke off: ") and gone.name in broken.refused, broken
