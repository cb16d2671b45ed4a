"""Where a view takes up: gradient and delta mode, holders, redo, dissent, checkpoints."""

from farflung.coordinator.membership.resuming.resume import fresh_layers, resume
from farflung.coordinator.membership.rules import Rules
from farflung.coordinator.membership.signals import Announcement, Flushed, Member, Section
from farflung.job.data.sampling import Position, assign, sample_ids
from farflung.scheduler.plans import Plan

PLAN = Plan((("a", "b"), ("c", "d")), ((0, 1), (2, 3)), (2, 2))
BASE = Announcement(1, PLAN, tuple(Member(name, f"s-{name}", "") for name in "abcd"), Position(10, 160))
ELIGIBLE = frozenset((name, f"s-{name}") for name in "abcd")
NEWEST = Position(5, 80)


def rules(mode):
    return Rules(mode=mode, batch=16, microbatch=4, seed=1, samples=1000, layers=4)


def answers(*names, step=12, **keys):
    made = {}
    for name in names:
        stage = PLAN.stage_of(name)
        section = Section(f"stage-{stage}", step, 7)
        layers = frozenset(range(PLAN.stages[stage][0], PLAN.stages[stage][1] + 1))
        fields = {"step": step, "ready_step": step, "norm": 1.5, "sections": (section,), "layers": layers}
        made[name] = Flushed(name, f"s-{name}", 2, **{**fields, **keys.get(name, {})})
    return made


def decide(mode, flushed, pinned=None, eligible=ELIGIBLE, reported=None, base=BASE):
    return resume(rules(mode), base, pinned, eligible, flushed, reported or {}, newest=NEWEST)


def test_first_view():
    decision = resume(rules("gradient"), None, None, frozenset(), {}, {}, newest=Position())
    assert decision.checkpoint == 0 and decision.position == Position()
    assert decision.why == "from the initial weights"


def test_a_committed_step_is_finished_by_those_who_were_ready():
    flushed = answers(
        "a", "b", "c", a={"step": 13, "ready_step": 13, "norm": 2.5}, b={"ready_step": 13}, c={"ready_step": 13}
    )
    decision = decide("gradient", flushed)
    assert decision.position == Position(13, 160 + 3 * 16)
    assert decision.norm == 2.5
    assert decision.holders == (("a", "c"), ("a", "c"), ("b",), ("b",))


def test_a_step_committed_nowhere_is_dropped():
    decision = decide("gradient", answers("a", "b", a={"ready_step": 13}, b={"ready_step": 13}))
    assert decision.position == Position(12, 192)
    assert decision.checkpoint == -1


def test_a_layer_without_holder_goes_back():
    decision = decide("gradient", answers("a", "c"))
    assert decision.checkpoint == 5 and decision.position == NEWEST
    assert decision.why == "nobody holds layers 2, 3 any more: from the checkpoint of step 5"


def test_stale_and_foreign_state_does_not_count():
    flushed = answers("a", "b")
    flushed["x"] = Flushed("x", "s-x", 2, step=12, layers=frozenset(range(4)))
    flushed["c"] = Flushed("c", "another-session", 2, step=99, layers=frozenset(range(4)))
    decision = decide("gradient", flushed)
    assert decision.position.step == 12
    assert decision.holders == (("a",), ("a",), ("b",), ("b",))


def test_pinned_position_stands():
    pinned = Announcement(2, PLAN, BASE.members, Position(13, 208, (3,)), norm=2.5)
    flushed = answers("a", "b", a={"ready_step": 13}, b={"ready_step": 13})
    decision = decide("gradient", flushed, pinned)
    assert decision.position == pinned.position and decision.norm == 2.5
    assert decision.holders[0] == ("a",)


def test_pinned_rollback_stands():
    pinned = Announcement(2, PLAN, BASE.members, NEWEST, checkpoint=5)
    assert decide("gradient", answers("a", "b", "c", "d"), pinned).checkpoint == 5


def test_chain_is_decided_by_the_majority():
    other = Section("stage-0", 12, 8)
    flushed = answers("a", "b", "c", "d", a={"sections": (other,)})
    flushed["e"] = Flushed("e", "s-e", 2, 12, 12, 1.5, sections=(Section("stage-0", 12, 7),), layers=frozenset({0, 1}))
    decision = decide("gradient", flushed, eligible=ELIGIBLE | {("e", "s-e")})
    assert decision.dissent == ("a",)
    assert decision.holders[0] == ("c", "e")


def test_delta_resumes_at_the_highest_and_redoes_the_rest():
    flushed = answers("a", "b", "c", "d", c={"step": 11}, d={"step": 11})
    decision = decide("delta", flushed)
    assert decision.position.step == 12
    positions = BASE.position.positions(12, 16)
    lost = assign(sample_ids(positions, 1, 1000), (2, 2), 4)[1]
    assert sorted(decision.position.redo) == sorted(positions[index] for index in lost)
    assert decision.position.cursor == 192


def test_delta_believes_the_last_report_of_a_dead_pipeline():
    decision = decide("delta", answers("a", "b"), reported={"c": 11, "d": 12})
    assert decision.position == Position(12, 192)
    decision = decide("delta", answers("a", "b"), reported={"c": 12, "d": 11})
    assert len(decision.position.redo) == 8  # d is the last stage: what it did not report is not counted
    decision = decide("delta", answers("a", "b"))
    assert len(decision.position.redo) == 16


def test_delta_redo_is_carried_over():
    base = Announcement(1, PLAN, BASE.members, Position(10, 160, tuple(range(40))))
    decision = decide("delta", answers("a", "b", "c", "d"), base=base)
    assert decision.position == Position(12, 160, tuple(range(32, 40)))


def at(*sections, chain=7):
    return {"sections": tuple(Section(name, round, chain) for name, round in sections)}


def test_delta_one_round_behind_catches_up():
    decision = decide("delta", answers("a", "b", "c", "d", c=at(("stage-0", 11), chain=6)))
    assert decision.holders == (("a", "c"), ("a", "c"), ("b", "d"), ("b", "d"))
    assert decision.sections[0] == Section("stage-0", 12, 7) and decision.dissent == ()


def test_delta_further_behind_is_no_holder():
    decision = decide("delta", answers("a", "b", "c", "d", c=at(("stage-0", 10), chain=5)))
    assert decision.holders == (("a",), ("a",), ("b", "d"), ("b", "d"))


def test_delta_tied_embedding_behind_on_the_last_stage():
    """d died; the first stage has applied the tied round 12, which b has yet to."""
    first, last = at(("stage-0", 12), ("tied", 12)), at(("stage-1", 12), ("tied", 11))
    decision = decide("delta", answers("a", "b", "c", a=first, b=last, c=first))
    assert decision.checkpoint == -1 and decision.holders == (("a", "c"), ("a", "c"), ("b",), ("b",))
    assert {one.name: one.round for one in decision.sections} == {"stage-0": 12, "stage-1": 12, "tied": 12}


def test_delta_a_stage_of_several_sections():
    """a has yet to apply one of them, c another: each takes it up from the other."""
    held = {name: at(("stage-0.0", 11 + (name == "c")), ("stage-0.7", 11 + (name == "a"))) for name in "ac"}
    decision = decide("delta", answers("a", "b", "c", **held))
    assert decision.checkpoint == -1 and decision.holders == (("a", "c"), ("a", "c"), ("b",), ("b",))
    assert {one.name: one.round for one in decision.sections} == {"stage-0.0": 12, "stage-0.7": 12, "stage-1": 12}
    held["c"] = at(("stage-0.0", 12), ("stage-0.7", 10))
    decision = decide("delta", answers("a", "b", "c", **held))
    assert decision.checkpoint == 5, "c is too far behind, and a has nobody to take stage-0.0 up from"
    held["c"] = at(("stage-0.0", 12), ("stage-0.7", 12), ("nonsense", 12))
    assert decide("delta", answers("a", "b", "c", **held)).holders[0] == ("a", "c")


def test_delta_tied_embedding_too_far_behind_goes_back():
    first, last = at(("stage-0", 12), ("tied", 12)), at(("stage-1", 12), ("tied", 10))
    assert decide("delta", answers("a", "b", "c", a=first, b=last, c=first)).checkpoint == 5


def test_delta_nobody_to_catch_up_from_goes_back():
    """The view that was announced wants round 12 of stage-1, and those who had it are dead."""
    pinned = Announcement(
        2, PLAN, BASE.members, Position(12, 192), (Section("stage-0", 12, 7), Section("stage-1", 12, 7))
    )
    decision = decide("delta", answers("a", "b", b=at(("stage-1", 11))), pinned)
    assert decision.why == "nobody holds layers 2, 3 any more: from the checkpoint of step 5"
    decision = decide("delta", answers("a", "b", "d", b=at(("stage-1", 11))), pinned)
    assert decision.holders[2] == ("b", "d")


def test_delta_rounds_of_an_announced_view_stand():
    """Sections stand at different rounds; d has taken over the view, which calls all of them 12, and b has not."""
    sections = (Section("stage-0", 12, 7), Section("stage-1", 11, 7))
    pinned = Announcement(2, PLAN, BASE.members, Position(12, 192), sections)
    taken = at(("stage-0", 12), chain=99), at(("stage-1", 12), chain=98)
    flushed = answers("a", "b", "c", "d", b=at(("stage-1", 11)), c=taken[0], d=taken[1])
    decision = decide("delta", flushed, pinned)
    assert decision.holders == (("a", "c"), ("a", "c"), ("b", "d"), ("b", "d")) and decision.dissent == ()
    assert decision.sections == (Section("stage-0", 12, 0), Section("stage-1", 11, 0)), "nobody was judged"


def test_two_against_two_is_a_tie():
    plan = Plan((("a",), ("b",), ("c",), ("d",)), ((0, 3),), (1, 1, 1, 1))
    base = Announcement(1, plan, BASE.members, Position(10, 160))
    made = {
        name: Flushed(
            name,
            f"s-{name}",
            2,
            12,
            12,
            1.5,
            sections=(Section("stage-0", 12, chain),),
            layers=frozenset(range(4)),
        )
        for name, chain in zip("abcd", (7, 8, 7, 8), strict=True)
    }
    for mode in ("gradient", "delta"):
        decision = decide(mode, made, base=base)
        assert decision.checkpoint == 5 and decision.position == NEWEST
        assert decision.why == (
            "as many nodes hold one history of stage-0 as another after round 12 (a, c against b, d): "
            "from the checkpoint of step 5"
        )
    assert resume(rules("delta"), base, None, ELIGIBLE, made, {}, newest=NEWEST, judge=False).checkpoint == -1


def test_a_tie_below_the_highest_round_trusts_those_who_went_on():
    flushed = answers("a", "b", "c", a=at(("stage-0", 11), chain=5), c=at(("stage-0", 11), chain=6))
    flushed["e"] = Flushed("e", "s-e", 2, 12, 12, 1.5, sections=(Section("stage-0", 12, 7),), layers=frozenset({0, 1}))
    plan = Plan((("a", "b"), ("c", "d"), ("e", "f")), ((0, 1), (2, 3)), (1, 1, 2))
    base = Announcement(1, plan, BASE.members, Position(10, 160))
    decision = decide("delta", flushed, eligible=ELIGIBLE | {("e", "s-e")}, base=base)
    assert decision.dissent == ("a", "c") and decision.holders[0] == ("e",)


def test_the_outvoted_do_not_say_where_the_run_stands():
    """a committed step 13 by itself, and its tied embedding is of a history that most do not have."""
    flushed = answers(
        "a", "b", "c", "d", a={"step": 13, "ready_step": 13, "norm": 9.0} | at(("stage-0", 13), ("tied", 12), chain=8)
    )
    for name in "bcd":
        flushed[name] = answers(name, **{name: at((f"stage-{PLAN.stage_of(name)}", 12), ("tied", 12))})[name]
    decision = decide("gradient", flushed)
    assert decision.dissent == ("a",) and decision.position.step == 12 and decision.norm == 1.5
    assert all("a" not in names for names in decision.holders)
    assert Section("stage-0", 12, 7) in decision.sections


def test_layers_that_nobody_had_who_has_them_now():
    holders = (("a", "c"), ("a", "c"), ("b", "d"), ("b", "d"))
    assert fresh_layers(PLAN, holders) == ""
    assert fresh_layers(Plan((("a", "b"), ("c", "d")), ((0, 2), (3, 3)), (2, 2)), holders) == "layer 2"
    assert fresh_layers(Plan((("d", "c"), ("b", "a")), ((0, 1), (2, 3)), (2, 2)), holders) == "layers 0, 1, 2, 3"
