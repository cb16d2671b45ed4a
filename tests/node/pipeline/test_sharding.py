"""An island whose ranks hold pieces of the parameters computes what one process with whole ones does."""

import queue
import re
import threading
from dataclasses import replace
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest
import torch
from sharded_runs import FACTS, GROUP, MIDDLE, ONE_STAGE, TWO_STAGES, assert_plain, job_of, trained

from farflung.node.models.decoders.matrix_plan import check_heads
from farflung.node.models.factory import model_of
from farflung.node.pipeline import cut_rows, island_worker
from farflung.node.pipeline.island import Island
from farflung.node.pipeline.piece import part_of
from farflung.node.pipeline.sharding import check_inside
from farflung.node.pipeline.spread_pass import SpreadPass, cut
from farflung.node.state.optimizers.make_optimizer import make_optimizer
from farflung.node.state.stage_state import StageState
from farflung.node.training.member.view_member import ViewMember
from farflung.proto.errors import FarflungError, RunFailed
from farflung.scheduler import Plan

pytestmark = pytest.mark.usefixtures("nobody_late")


CASES = {
    "one stage, tied": (job_of(), ONE_STAGE),  # 3 samples are 2 and 1
    "fewer samples than ranks": (job_of(microbatch=1), Plan((("n0",),), ((0, 3),), (12,))),
    "last of two": (job_of("llama"), TWO_STAGES),
    "middle, recompute": (job_of(recompute=True), MIDDLE),
    "a plan's choice": (job_of(inside="auto"), replace(ONE_STAGE, chosen={"parallel.inside": "fsdp"})),
    "a plan's other choice": (job_of(inside="auto"), replace(ONE_STAGE, chosen={"parallel.inside": "ddp"})),
    "with a node of one device": (job_of(), GROUP),
    "matrices, two stages": (job_of("llama", "tp"), TWO_STAGES),
    "matrices, biases": (job_of("gpt_neox", "tp"), ONE_STAGE),
    "matrices, tied, recompute": (job_of("qwen3", "tp", recompute=True, model={"tie": True, "kv_heads": 2}), ONE_STAGE),
}


@pytest.mark.parametrize("name", CASES)
def test_equal_to_the_plain_loop(island, name):
    assert_plain(*CASES[name], island)


POWER = "powersgd:rank=1"
ROUNDS = {  # updates, and what a rank is told beside to encode
    "all to all": (
        {"mode": "delta", "codec": "cocktail:random=0.5,top=0.2,bits=4", "overlap": 1, "dense_rounds": 1},
        {"apply"},
    ),
    "a publisher, feedback apart, overtaken by steps": (
        {
            "mode": "delta",
            "codec": "chunked_topk:k=64,bits=2,feedback=true",
            "pattern": "publishers",
            "outer": "nesterov:lr=0.7,momentum=0.9",
            "every": 2,
            "overlap": 2,
            "train": {"optimizer": "adafactor"},  # whose moments are shorter than the ranks' sections
        },
        {"apply", "moves"},
    ),
    "in phases": ({"mode": "delta", "codec": POWER}, {"advance", "decide", "check", "apply"}),
    "every step, each sum in its place": ({"codec": "none", "pattern": "publishers"}, {"put"}),
    "every step, feedback": (
        {"codec": "int8", "pattern": "publishers", "dense_rounds": 1, "train": {"optimizer": "onebit_adam"}},
        {"prepare", "put", "apply"},
    ),
    "every step, in phases": (
        {"codec": POWER, "dense_rounds": 1},
        {"advance", "decide", "check", "square", "put", "apply"},
    ),
}


@pytest.mark.parametrize("name", ROUNDS)
def test_each_rank_encodes_and_applies_its_sections(island, monkeypatch, name):
    """The bits are those of a first process that does it all; `trained` compares them with the other member's."""
    updates, told = ROUNDS[name]
    job = job_of(**updates)
    orders, order = set(), Island.order

    def watched(of, rank, do, *tensors, **words):
        orders.add(do)
        order(of, rank, do, *tensors, **words)

    monkeypatch.setattr(Island, "order", watched)
    got = trained(job, GROUP, island)
    assert orders >= {"encode", "contents", *told}
    monkeypatch.setattr(ViewMember, "spread_rounds", lambda view: None)
    wanted = trained(job, GROUP, island)
    assert (got.losses, got.evals, got.fingerprints) == (wanted.losses, wanted.evals, wanted.fingerprints)


def test_dropout_in_rows_is_that_of_one_device(island):
    job = job_of(model={"dropout": 0.1})
    got, wanted = (trained(job, ONE_STAGE, one).losses for one in (island, None))
    assert got == pytest.approx(wanted, abs=1e-5)


def test_a_rank_that_fails_alone_wakes_the_others(monkeypatch):
    ended: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(island_worker, "_end_alone", ended.put)
    monkeypatch.setattr(island_worker, "ALONE_SECONDS", 0.01)
    gone = threading.Event()
    monkeypatch.setattr(island_worker, "os", SimpleNamespace(_exit=lambda status: gone.set()))
    ours, theirs = Pipe()

    def obey(words):
        raise torch.OutOfMemoryError("none left")

    hand = SimpleNamespace(is_sharded=True, place="/proc/nowhere", obey=obey)
    threading.Thread(target=island_worker.serve, args=(theirs, hand), daemon=True).start()
    island_worker.say(ours, {"do": "forward"})
    answer = island_worker.hear(ours)
    assert answer["kind"] == "memory" and "none left" in answer["error"]
    assert "none left" in ended.get(timeout=60)
    for order in ("encode", "decide"):  # nobody waits for it: it stays, for whatever the first process orders next
        monkeypatch.setattr(island_worker.threading, "Timer", lambda *_: pytest.fail("it would end"))
        island_worker.say(ours, {"do": order})
        assert "none left" in island_worker.hear(ours)["error"]
    ours.close()
    assert gone.wait(60)  # while it ends nothing but itself


def test_the_first_rank_does_not_wait_for_those_that_wait_for_it(monkeypatch):
    monkeypatch.setattr("farflung.node.pipeline.island.ALONE_SECONDS", 0.01)
    ours, _theirs = Pipe()
    silent = SimpleNamespace(_hands=[SimpleNamespace(connection=ours)])
    with pytest.raises(RunFailed, match="a pass failed on one device of this node's island alone: too large"):
        Island.hurry(silent, [1], RuntimeError("too large"))


def test_each_rank_holds_its_part_and_a_failed_pass_is_made_good(island):
    job, device = job_of(), torch.device("cpu")
    state = StageState(model_of(job, FACTS), job, MIDDLE, "n0", make_optimizer(job), device, shared=True)
    (model,), sections = state.models, list(state.sections.values())
    island.take_up(job, FACTS, lambda *_: b"", ())
    island.place(MIDDLE, "n0", (), sections)
    assert island.bytes_held == [sum(section.x.nbytes for section in sections) // 2] * 2
    for section in sections:
        section.x.normal_()
    island.share(sections)
    sample = torch.randn(2, 16, 32)
    for rows in (31, 32):  # a width that no layer takes, then the right one
        island.share(sections)
        try:
            made = SpreadPass(island, 0, model, sample[:, :, :31] if rows == 31 else sample, torch.empty(0))
        except RuntimeError:
            assert rows == 31 and island.spoiled
    assert not island.spoiled
    made.backward(torch.ones_like(made.output))
    island.sum(sections)
    assert sum(island.bytes_kept) == sum(section.nbytes for section in sections) and min(island.bytes_kept) > 0
    squares = {section.layout.section: float(section.grad.double().square().sum()) for section in sections}
    assert island.squares(squares) == pytest.approx(squares)
    gradient = torch.cat([section.grad for section in sections])
    state.gradients.begin()
    model(sample).sum().backward()
    state.gradients.end()
    torch.testing.assert_close(gradient, torch.cat([section.grad for section in sections]), rtol=1e-3, atol=1e-3)


def test_cuts():
    assert cut(3, 2) == [(0, 2), (2, 3)] and cut(1, 3) == [(0, 1), (1, 1), (1, 1)]
    for length in range(20):
        whole = torch.arange(length)
        for ranks in range(1, 6):
            pieces = [whole[part_of(length, ranks, rank)] for rank in range(ranks)]
            wanted = torch.chunk(whole, ranks) if length else ()
            assert [one.tolist() for one in pieces if len(one)] == [one.tolist() for one in wanted]


def test_what_cannot_be_cut():
    for family in ("gpt2", "olmo2"):
        with pytest.raises(FarflungError, match=f"the model family '{family}'"):
            model_of(job_of(family, "tp"), FACTS)
    config = model_of(job_of("llama", "tp", model={"kv_heads": 2}), FACTS).config
    check_heads(config, 2)
    with pytest.raises(FarflungError, match="2 heads of keys of this model cannot be shared by 4 devices") as caught:
        check_heads(config, 4)
    assert caught.value.hint == "use --island 2"


def test_what_older_torches_lack(monkeypatch):
    definition = model_of(job_of("llama"), FACTS)
    assert check_inside(definition, "fsdp", 2, "cpu").rows == 2
    monkeypatch.delattr(torch.cpu.Stream, "record_event")
    for inside in ("fsdp", "fsdp+tp"):
        with pytest.raises(FarflungError, match=f'"{re.escape(inside)}" does not work on CPUs with torch'):
            check_inside(definition, inside, 4, "cpu")
    assert check_inside(definition, "fsdp", 2, "cuda").rows == 2 and check_inside(definition, "tp", 2, "cpu").rows == 1
    linear, table = torch.nn.Linear(2, 2), torch.nn.Embedding(2, 2)
    for backend, on_request, wanted in (("nccl", True, None), ("gloo", True, None), ("gloo", False, torch.float64)):
        monkeypatch.setattr(cut_rows.dist, "get_backend", lambda backend=backend: backend)
        monkeypatch.setattr(cut_rows, "_sums_on_request", lambda on_request=on_request: on_request)
        assert cut_rows._policy([linear], half=False).reduce_dtype == wanted
        assert cut_rows._policy([table], half=True).reduce_dtype == wanted
        assert cut_rows._policy([linear], half=True).reduce_dtype == (wanted or torch.float32)
