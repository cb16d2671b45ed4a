"""What a node learns beside a checkpoint outlives a restart of everything, and S with it."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from allocated import peak_of
from hypothesis import given
from hypothesis import strategies as st
from round_group import NUMEL, Group
from sums import s_of

from farflung.node.rounds.arithmetic import exchange as exchanges
from farflung.node.rounds.arithmetic.exchange import Exchange
from farflung.node.rounds.protocol.messages import Part, RoundPlan
from farflung.node.state.files.rests import KEPT, PENDING, Rest, Rests, digest_of, staying
from farflung.node.state.sections import vectors
from farflung.node.state.sections.moments import Kept
from farflung.node.state.sections.section import Layout, Section
from farflung.node.training.member.residual import rest_of
from farflung.node.training.steps.milestones import Milestones
from farflung.scheduler import Plan

COCKTAIL = "cocktail:random=0.3,top=0.3,bits=4"


# ---- the files ------------------------------------------------------------------------------------


def rest(step, view=1, value=1.0):
    tensors = {"rest.w": torch.full((3,), value), "moment.m.w": torch.full((3,), 2.0).bfloat16()}
    return Rest(step, view, 0.5, 2.0, tensors, {"w": ("00", 0.25)}, 7)


def kept(rests, *these):
    for one in these:
        rests.keep(one)
        rests.wait()
    return rests.held()


def test_the_newest_two_stay_and_come_back_bit_for_bit(tmp_path):
    rests = Rests(tmp_path / "r", "run")
    rests.complete = (1, 30)
    assert rests.held() == [] and rests.read(1, 1) is None
    assert kept(rests, rest(10), rest(20), rest(30, value=3.0)) == [(30, 1), (20, 1)]
    found = Rests(tmp_path / "r", "run").read(30, 1)
    assert torch.equal(found.tensors["rest.w"], torch.full((3,), 3.0))
    assert found.tensors["moment.m.w"].dtype == torch.bfloat16
    assert (found.norm, found.moved, found.optimizer_steps, found.beside) == (0.5, 2.0, 7, {"w": ("00", 0.25)})
    assert sorted(path.name for path in (tmp_path / "r").iterdir()) == [
        "step-20-view-1.safetensors",
        "step-30-view-1.safetensors",
    ]


def test_what_lies_beside_the_complete_checkpoint_stays_while_the_coordinator_is_away(tmp_path):
    """It may have completed the next ones before it went away, and have told nobody."""
    rests = Rests(tmp_path, "run")
    kept(rests, rest(10))
    rests.complete = (1, 10)
    there = kept(rests, *(rest(step) for step in (20, 30, 40, 50, 60)))
    assert there == [(60, 1), (50, 1), (30, 1), (20, 1), (10, 1)]
    rests.complete = (1, 60)
    assert kept(rests, rest(70)) == [(70, 1), (60, 1)]


CHECKPOINTS = st.tuples(st.integers(0, 3), st.integers(0, 9))


@given(steps=st.sets(CHECKPOINTS), complete=CHECKPOINTS)
def test_which_rests_stay(steps, complete):
    stay = staying(steps, complete)
    assert stay <= steps and len(stay) <= 1 + PENDING + KEPT
    assert ({complete} & steps) | ({max(steps)} if steps else set()) <= stay
    assert set(sorted(one for one in steps if one > complete)[:PENDING]) <= stay


@pytest.mark.parametrize("most", [2, 3, 5])
def test_while_a_coordinator_is_away_rests_take_no_more_than_the_owner_allows(tmp_path, most):
    """Those that matter most stay: of the complete checkpoint, and the newest."""
    size = sum(values.nbytes for values in rest(0).tensors.values())
    rests = Rests(tmp_path, "run", limit=(most + 1) * size)
    rests.complete = (1, 10)
    kept(rests, *(rest(step) for step in range(10, 80, 10)))
    stay = [step for step, _ in rests.held()]
    assert stay == {2: [70, 10], 3: [70, 20, 10], 5: [70, 60, 30, 20, 10]}[most]


def test_a_run_that_goes_back_forgets_what_is_of_later_steps(tmp_path):
    rests = Rests(tmp_path, "run")
    kept(rests, rest(10), rest(20))
    rests.forget_after(10)
    assert kept(rests, rest(20, view=2)) == [(20, 2), (10, 1)]


def test_damaged_ones_and_those_of_another_run_are_none(tmp_path):
    rests = Rests(tmp_path, "run")
    kept(rests, rest(10), rest(20))
    assert Rests(tmp_path, "other").read(10, 1) is None
    path = tmp_path / "step-10-view-1.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert rests.read(10, 1) is None
    path.write_bytes(data[: len(data) // 2])
    assert rests.read(10, 1) is None and rests.read(20, 1) is not None


def test_no_room_is_said_and_nothing_is_kept(tmp_path):
    said = []
    rests = Rests(tmp_path, "run", limit=20, tell=said.append)
    assert kept(rests, rest(10), rest(20)) == [] and len(said) == 1 and "--max-disk" in said[0]
    (tmp_path / "file").write_text("")
    rests = Rests(tmp_path / "file" / "below", "run", tell=said.append)
    kept(rests, rest(10), rest(20))
    assert "cannot be kept" in said[-1]


# ---- S --------------------------------------------------------------------------------------------

SPECS = st.sampled_from(["none", "int8", COCKTAIL, f"{COCKTAIL},feedback=true", "topk:ratio=0.1", "sign:feedback=true"])


@given(
    codec=SPECS,
    pattern=st.sampled_from(["publishers", "all_to_all", "two_level"]),
    weights=st.lists(st.integers(1, 5), min_size=4, max_size=5),
    absent=st.lists(st.integers(0, 4), max_size=4),
    seed=st.integers(0, 1000),
)
def test_what_nodes_keep_is_all_of_s_that_g_is_not(codec, pattern, weights, absent, seed):
    """After any rounds: S = g + the mean of what the members would write down."""
    group = Group(pattern, codec, [float(one) for one in weights])
    generator = torch.Generator().manual_seed(seed)
    for missing in [*absent, 0]:
        for link in group.links.values():
            link.exchange.section.x.add_(torch.randn(NUMEL, generator=generator))
            link.rounds.durations = [0.1] * 5 if missing else []
            link.begin()
        late = "abcde"[missing % len(weights)] if missing else ""
        if late and pattern != "two_level":  # what it offers comes after the deadline
            group.mail = [one for one in group.mail if one[0] != late]
        group.deliver_all()
        group.now += 10.0
        for link in group.links.values():
            link.tick()
        for _ in range(4):
            group.deliver_all()
            for link in group.links.values():
                link.tick()
            group.now += 10.0
        if not all(link.complete for link in group.links.values()):
            break  # the view ends in the middle: also an end of everything
        for name in group.links:
            group.apply(name)
    wanted = group.total()
    found = next(iter(group.links.values())).exchange.section.g.double()
    for weight, link in zip(weights, group.links.values(), strict=True):
        for vector in link.exchange.unsent().values():
            found = found + vector.double() * weight / math.fsum(weights)
    assert torch.allclose(found, wanted, atol=1e-5)


@pytest.fixture
def restarts(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[4]))
    from benchmarks import restarts

    monkeypatch.setattr(restarts, "AT", 6)
    return restarts


@pytest.mark.parametrize(
    "updates",
    [
        {"codec": COCKTAIL, "overlap": 1},
        {"codec": "chunked_topk:k=64,bits=2,feedback=true", "overlap": 1},
        {"codec": "int4", "every": 4, "overlap": 2, "outer": "nesterov:lr=0.7,momentum=0.9"},
        {"codec": "powersgd:rank=1", "overlap": 1},
        {"codec": COCKTAIL, "pattern": "gossip", "agreed": False},
    ],
)
@pytest.mark.parametrize("changed", [False, True])
def test_s_is_the_same_after_a_restart_of_everything(restarts, tmp_path, monkeypatch, updates, changed):
    """Also when the shares are others."""
    job = restarts.job_of("delta", updates, 1, 8)
    before = {}
    checkpoint = Milestones.checkpoint

    def spy(milestones, step):
        if step == 6:
            before[milestones._view.context.name] = s_of([milestones._view])
        checkpoint(milestones, step)

    monkeypatch.setattr(Milestones, "checkpoint", spy)
    made = restarts.begun(job, tmp_path, {}, restarts.PLAN)
    made.finish(restarts.PLAN.nodes)
    restarts.settle(made, 6)
    plan = Plan(pipelines=restarts.PLAN.pipelines, stages=((0, 2),), microbatches=(1, 1, 2))
    monkeypatch.setattr(restarts, "PLAN", plan if changed else restarts.PLAN)
    again = restarts.again(job, tmp_path, made, start=False)
    found = s_of([trainer.training.view for trainer in again.trainers.values()])
    wanted = sum(before.values())
    assert torch.allclose(found, wanted, atol=2e-6)
    g = again.trainers["a"].state.sections["stage-0"].g.double()
    if "pattern" not in updates:
        assert float((wanted - g).norm()) > 1e-3, "or there would be nothing to lose"


def test_the_norm_of_a_rest_takes_no_vector_of_the_stage_s_length(monkeypatch):
    """What a checkpoint, a view change and a goodbye say of it: in fp64 and squared it would be four copies more."""
    monkeypatch.setattr(vectors, "PIECE", 1 << 12)
    length = 3 * vectors.PIECE + 17
    x, g, fed = (torch.randn(length, generator=torch.Generator().manual_seed(one)) for one in range(3))
    found = []
    peak = peak_of(lambda: found.append(vectors.squared_norm_of_sum((x, g, fed), (1.0, -1.0, 2.0))))
    assert found[0] == pytest.approx(float((x.double() - g.double() + 2 * fed.double()).square().sum()), rel=1e-12)
    assert peak <= 4 * 8 * vectors.PIECE
    assert vectors.squared_norm_of_sum([]) == 0.0


def view_of(gradient):
    """A member of a view with 8 parameters of 256 kB, a server error of a part in the middle, and an error feedback in
    gradient mode."""
    layout = Layout.of("stage-0", {f"w{number}": (256, 256) for number in range(8)})
    length, draw = layout.numel, torch.Generator().manual_seed(3)
    section = Section(layout, gradient, Kept(("m", "v")), torch.device("cpu"))
    for vector in (section.g, section.x, *section.moments.values()):
        vector.normal_(generator=draw)
    third = length // 3
    parts = [Part(at, "ab"[at % 2], third * at, length if at == 2 else third * (at + 1)) for at in range(3)]
    plan = RoundPlan("stage-0", ("a", "b"), (1.0, 1.0), tuple(parts), "publishers", gradient)
    exchange = Exchange(section, plan, "b", "int8", gradient=gradient)
    exchange.errors[1] = torch.randn(third, generator=draw)
    section.feedback = torch.randn(length, generator=draw) if gradient else None
    state = SimpleNamespace(sections={"stage-0": section}, optimizer_steps=1)
    context = SimpleNamespace(view=1)
    return SimpleNamespace(
        state=state, exchanges={"stage-0": exchange}, gradient=gradient, is_alone=False, context=context
    )


@pytest.mark.parametrize("gradient", [False, True])
def test_a_rest_takes_its_copies_or_where_memory_is_short_one_parameter(monkeypatch, tmp_path, gradient):
    monkeypatch.setattr(vectors, "PIECE", 1 << 12)
    monkeypatch.setattr(exchanges, "SEGMENT", 1 << 12)
    view, one = view_of(gradient), 4 << 16
    copied, read, pulses, said = [], [], [], []
    most = peak_of(lambda: copied.append(rest_of(view, 5)))
    kept = sum(values.nbytes for values in copied[0].tensors.values())
    assert kept == 8 * one * (1 if gradient else 3)
    assert most <= kept + one
    rests = Rests(tmp_path / "read", "run", tell=said.append)

    def keep():
        read.append(rest_of(view, 5, kept - 1))
        rests.keep(read[0], lambda: pulses.append(1))

    assert peak_of(keep) < 3.5 * one, "a parameter, the one before, and a server error of it"
    assert rests.held() == [(5, 1)] and pulses and "training waits" in said[0]
    before = Rests(tmp_path / "copied", "run")
    before.keep(copied[0])
    before.wait()
    found, wanted = rests.read(5, 1), before.read(5, 1)
    assert found.tensors.keys() == wanted.tensors.keys()
    assert all(torch.equal(values, wanted.tensors[name]) for name, values in found.tensors.items())
    assert (found.norm, found.beside) == (wanted.norm, wanted.beside)
    whole = sum(view.exchanges["stage-0"].unsent().values())
    assert found.norm == pytest.approx(float(whole.double().norm()) * (1.0 if gradient else 0.5), rel=1e-6)


def test_a_hash_of_bits_tells_them_apart():
    assert digest_of(torch.tensor([0.0])) != digest_of(torch.tensor([-0.0]))
