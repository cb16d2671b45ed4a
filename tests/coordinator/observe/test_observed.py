"""What the reports of the last half minute say, and the curves of a run: pure."""

from pathlib import Path

import pytest

from farflung.coordinator.observe.history import History, Point
from farflung.coordinator.observe.observed import PARTS, Observed, split_of
from farflung.coordinator.store.rows import EvalRow, StepRow
from farflung.coordinator.store.store import Store
from farflung.proto.control_pb2 import Sent, StepDone


def report(step: int, seconds: float = 2.0, **sent: int) -> StepDone:
    done = StepDone(step=step, seconds=seconds, compute_seconds=1.0, codec_seconds=0.25, wire_seconds=0.5)
    done.sent.extend(Sent(peer=peer, bytes=count) for peer, count in sent.items())
    return done


def test_a_step_is_split_without_a_rest() -> None:
    assert dict(zip(PARTS, split_of(report(1)), strict=True)) == {
        "compute": 1.0,
        "codec": 0.25,
        "wire": 0.5,
        "waiting": 0.0,
        "other": 0.25,
    }
    assert split_of(report(1, seconds=1.0))[-1] == 0.0  # clocks that disagree make no negative time


def test_links_are_rates_over_the_window() -> None:
    observed = Observed()
    for step in range(1, 6):
        observed.step("a", report(step, b=250_000), now=2.0 * step)
    assert observed.links(10.0) == {("a", "b"): pytest.approx(1e6)}
    assert observed.nodes(10.0)["a"]["parts"]["compute"] == pytest.approx(0.5)
    assert observed.nodes(10.0)["a"]["step_s"] == pytest.approx(2.0)
    assert observed.links(1000.0) == {} and observed.nodes(1000.0) == {}
    assert observed.sent_total == {("a", "b"): 1_250_000}  # counters never go back


def test_a_step_longer_than_the_window_is_still_seen() -> None:
    observed = Observed()
    observed.step("a", report(1, seconds=60.0, b=60), now=60.0)
    assert observed.links(200.0) == {("a", "b"): pytest.approx(8.0)}
    assert observed.links(300.0) == {}


def test_the_time_of_a_step_is_the_mean_of_its_nodes() -> None:
    observed = Observed()
    observed.step("a", report(1), now=1.0)
    observed.step("b", report(1, seconds=4.0), now=1.0)
    assert observed.parts_of_step(1) == (1.0, 0.25, 0.5, 0.0, pytest.approx(1.25))
    assert observed.parts_of_step(1) is None


def row(step: int, loss: float | None = 2.0) -> StepRow:
    return StepRow(
        step,
        1,
        loss,
        8,
        100,
        0.5,
        bytes_updates=10,
        bytes_activations=20,
        bytes_other=1,
        bytes_dense=300,
        bytes_dense_updates=200,
        notes="",
        time=float(step),
    )


def grown(steps: int, evals: list[EvalRow]) -> History:
    history = History(evals=evals)
    for step in range(1, steps + 1):
        history.step(row(step), None)
    return history


def test_a_restart_reads_as_many_points_as_it_shows(tmp_path: Path) -> None:
    store = Store(tmp_path, create=True)
    assert store.steps.curve(10) == []
    for step in range(1, 96):
        store.steps.put(row(step, loss=None if step == 1 else float(step)))
    found = History((Point.of(one) for one in store.steps.curve(10)), limit=10)
    rows = found.since(-1, 0, 0)["point_rows"]
    assert [one[0] for one in rows] == [9, 19, 29, 39, 49, 59, 69, 79, 89, 95]
    assert rows[0][:5] == [9, 5.5, 200.0, 30, 300] and rows[1][1] == 14.5
    found.step(row(96, loss=1.0), None)  # the last point still has room
    assert found.since(-1, 0, 0)["point_rows"][-1][0] == 96 and len(found.since(-1, 0, 0)["point_rows"]) == 10
    assert sum(point.count for point in (Point.of(one) for one in store.steps.curve(1000))) == 95
    store.close()


def test_curves_stay_small_and_lose_nothing() -> None:
    history = History(limit=10)
    for step in range(1, 101):
        history.step(row(step, loss=float(step)), (0.1, 0.0, 0.0, 0.0, 0.4))
    rows = history.since(-1, 0, 0)["point_rows"]
    assert len(rows) <= 20 and rows[-1][0] == 100
    assert rows[0][:5] == [8, 4.5, 200.0, 30, 300] and rows[0][5] == [0.1, 0, 0, 0, 0.4]


def test_only_what_is_new_is_handed_out() -> None:
    history = grown(2, [EvalRow(2, 1.5, 10, None, 0.0)])
    first = history.since(-1, 0, 0)
    assert (first["points"], len(first["point_rows"]), first["eval_rows"]) == (0, 2, [[2, 1.5]])
    history.step(row(3), None)
    second = history.since(first["edition"], 2, 1)
    assert second["points"] == 1 and [one[0] for one in second["point_rows"]] == [2, 3] and second["eval_rows"] == []


def test_a_run_that_goes_back_forgets() -> None:
    history = grown(8, [EvalRow(4, 1.0, 1, None, 0.0), EvalRow(8, 1.0, 1, None, 0.0)])
    edition = history.edition
    history.back_to(5)
    found = history.since(edition, 8, 2)
    assert found["edition"] != edition and found["points"] == 0
    assert [one[0] for one in found["point_rows"]] == [1, 2, 3, 4, 5] and found["eval_rows"] == [[4, 1.0]]
    history.step(row(5, loss=9.0), None)  # trained again
    assert history.since(-1, 0, 0)["point_rows"][-1][:2] == [5, 9.0]
    history.step(row(6, loss=None), None)
    assert history.since(-1, 0, 0)["point_rows"][-1][1] is None
