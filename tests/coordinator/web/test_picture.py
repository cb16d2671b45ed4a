"""What the page shows: pure functions of a status record."""

from pathlib import Path
from typing import Any

import pytest
from made_up_run import PIPELINES, MadeUpRun

from farflung.coordinator.web.feed import Feed
from farflung.coordinator.web.picture import carried, columns, picture


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> MadeUpRun:
    return MadeUpRun(tmp_path_factory.mktemp("run"), steps=40)


def test_what_each_link_carries() -> None:
    roles = carried({"pipelines": [list(names) for names in PIPELINES]})
    assert roles["frankfurt-1", "attic"] == "activations" and roles["attic", "frankfurt-1"] == "gradients"
    assert roles["attic", "oregon-1"] == roles["oregon-1", "attic"] == "updates"
    assert ("frankfurt-1", "oregon-1") not in roles and len(roles) == 8
    both = carried({"pipelines": [["a", "b", "a", "b"]]})  # an interleaved schedule
    assert both == {("a", "b"): "activations and gradients", ("b", "a"): "activations and gradients"}
    assert carried(None) == {} and carried({"pipelines": [["a", "a"]]}) == {}


def test_links_have_their_load_and_the_bottleneck_is_marked(run: MadeUpRun) -> None:
    shown = picture(run.record(), [])
    links = {(link["from"], link["to"]): link for link in shown["links"]}
    upward = links["attic", "frankfurt-1"]
    assert upward["load"] == pytest.approx(upward["used_bps"] / 20e6) and upward["bottleneck"]
    assert links["attic", "oregon-1"]["bottleneck"] and not links["frankfurt-1", "attic"]["bottleneck"]
    assert links["frankfurt-1", "oregon-1"]["carries"] is None and links["frankfurt-1", "oregon-1"]["load"] is None


def test_a_planned_link_without_a_measurement_is_shown(run: MadeUpRun) -> None:
    record = run.record()
    record["links"] = []
    shown = picture(record, [])["links"]
    assert len(shown) == 8 and all(link["load"] is None for link in shown)


def test_advice_to_an_owner_is_no_advice_to_everybody(run: MadeUpRun) -> None:
    record = run.record()
    said = {node["node"]: node.get("advice", {}) for node in record["nodes"]}
    assert said["attic"]["better"].startswith("your upload is")
    shown = {node["node"]: node["advice"]["better"] for node in picture(record, [])["nodes"]}
    assert shown["attic"].startswith("its upload is")


def test_who_is_gone_is_shown_with_its_device(run: MadeUpRun) -> None:
    (gone,) = picture(run.record(), [])["gone"]
    assert (gone["node"], gone["why"]) == ("spot-7", "left: its machine is being taken away (SIGTERM)")
    assert gone["left"] and "device" in gone


def test_the_plan_and_the_time_to_go(run: MadeUpRun) -> None:
    record = run.record()
    shown = picture(record, [])
    assert shown["plan"]["shares"] == [0.625, 0.375] and shown["plan"]["stages"] == [[0, 5], [6, 13]]
    assert shown["run"]["eta_s"] == pytest.approx((4000 - 40) * record["step_s"])
    assert picture({**record, "phase": "waiting"}, [])["run"]["eta_s"] is None
    assert picture({**record, "phase": "waiting", "paused": "paused by me"}, [])["run"]["phase"] == "paused"
    assert [one["node"] for one in shown["gone"]] == ["spot-7"]
    assert shown["gone"][0]["why"] == "left: its machine is being taken away (SIGTERM)"


def test_who_was_put_out_is_shown_however_many_have_left_since(run: MadeUpRun) -> None:
    record = run.record()
    gone = [{"node": f"n-{number}", "in": False, "left": number, "why": "left"} for number in range(30)]
    gone[3]["evicted"] = "evicted by alice"
    shown = picture({**record, "nodes": record["nodes"] + gone}, [])["gone"]
    assert [one["node"] for one in shown] == ["n-3", *(f"n-{number}" for number in range(20, 30))]
    assert shown[0]["evicted"] == "evicted by alice" and shown[1]["evicted"] is None


def test_stages_of_an_interleaved_schedule_stand_in_one_column() -> None:
    view = {"pipelines": [["a", "b", "a", "b"]], "stages": [[0, 0], [1, 2], [3, 3], [4, 5]]}
    assert columns(view) == [
        {"stages": [0, 2], "layers": [[0, 0], [3, 3]]},
        {"stages": [1, 3], "layers": [[1, 2], [4, 5]]},
    ]


def test_before_the_first_view(run: MadeUpRun) -> None:
    record: dict[str, Any] = {**run.record(), "view": None, "links": [], "loss": None, "step": 0}
    shown = picture(record, [])
    assert shown["plan"] is None and shown["links"] == []


def test_the_feed_is_made_once_a_second_for_everybody(tmp_path: Path) -> None:
    made = 0

    class Counted(MadeUpRun):
        def record(self) -> dict[str, Any]:
            nonlocal made
            made += 1
            return super().record()

    now = 0.0
    feed = Feed(Counted(tmp_path, steps=2), lambda: now)
    first = feed.state()
    assert feed.state() is first and feed.record["step"] == 2 and made == 1
    now = 1.5
    assert feed.state() and made == 2
    assert '"view": 3' in first and "spot-7 left" in first
