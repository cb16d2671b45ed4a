"""What holds a run up, and what each node is told: a record in, sentences out."""

from typing import Any

import pytest

from farflung.coordinator.observe.advice import advice, bottleneck, of_text, regions, told


def node(name: str, stage: int | None = 0, pipeline: int = 0, **keys: Any) -> dict[str, Any]:
    return {"node": name, "in": True, "role": "trains", "stage": stage, "pipeline": pipeline, "share": 0.5, **keys}


def parts(compute: float, wire: float = 0.0) -> dict[str, float]:
    return {"compute": compute, "codec": 0.0, "wire": wire, "waiting": 1 - compute - wire, "other": 0.0}


def link(source: str, target: str, used: float | None, most: float = 20e6) -> dict[str, Any]:
    return {"from": source, "to": target, "latency_s": 0.05, "bandwidth_bps": most, "used_bps": used}


def record(nodes: list[dict[str, Any]], links: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"nodes": nodes, "links": links or [], "view": {"stages": [[0, 3], [4, 7]]}}


def test_an_upload_that_several_links_share() -> None:
    nodes = [node("a", parts=parts(0.3)), node("b", 1, parts=parts(0.2)), node("c", 1, 1)]
    run = record(nodes, [link("b", "a", 10e6), link("b", "c", 8e6), link("a", "b", 1e6, 100e6)])
    held = bottleneck(run)
    assert held is not None and (held["kind"], held["node"], held["load"]) == ("upload", "b", pytest.approx(0.9))
    assert held["text"] == "the upload of b: 18 of 20 Mbit/s"
    assert advice(run, "b") == {
        "doing": "holds stage 1 (layers 4–7) of pipeline 0",
        "use": "50% of every batch goes through it; it computes for 20% of a step",
        "better": "your upload is the bottleneck of stage 1: 18 of 20 Mbit/s",
    }
    assert advice(run, "a")["better"] == ""
    assert told(run, "a")["better"] == "nothing here: the run is held up by the upload of b: 18 of 20 Mbit/s"
    assert told(run, "b") == advice(run, "b") and told(run, "nobody")["better"] == ""


def test_links_that_are_each_full_share_nothing() -> None:
    """Two links at 19 of 20 Mbit/s are no upload of 20: each has a narrow place of its own."""
    run = record([node("a"), node("b"), node("c")], [link("a", "b", 19e6), link("a", "c", 18e6)])
    held = bottleneck(run)
    assert held is not None and (held["kind"], held["node"], held["to"]) == ("link", "a", "b")
    assert advice(run, "a")["better"] == "your upload to b is the bottleneck of stage 0: 19 of 20 Mbit/s"
    assert advice(run, "b")["better"] == "your download from a is the bottleneck of stage 0: 19 of 20 Mbit/s"


def test_a_device_that_never_rests() -> None:
    run = record([node("a", parts=parts(0.95)), node("b", 1, parts=parts(0.5))])
    held = bottleneck(run)
    assert held is not None and held["text"] == "the device of a: it computes for 95% of a step"
    assert advice(run, "a")["better"].startswith(
        "your device is the bottleneck of stage 0 (it computes for 95% of a step)"
    )


def test_a_link_whose_directions_take_turns() -> None:
    """As measured between two hosts 30 ms and 3 Mbit/s apart: half full, and yet all that they wait for."""
    nodes = [node("a", parts=parts(0.23, wire=0.59)), node("b", 1, parts=parts(0.26, wire=0.67))]
    run = record(nodes, [link("a", "b", 1.48e6, 2.81e6), link("b", "a", 1.47e6, 2.81e6)])
    held = bottleneck(run)
    assert held is not None and held["text"] == "the link a → b: 1.48 of 2.81 Mbit/s"
    assert advice(run, "a")["better"] == "your upload to b is the bottleneck of stage 0: 1.48 of 2.81 Mbit/s"
    busy = record([node("a", parts=parts(0.5, wire=0.3)), nodes[1]], run["links"])
    assert bottleneck(busy) is None  # somebody computes meanwhile


def test_nothing_is_full() -> None:
    run = record([node("a", parts=parts(0.3, wire=0.5)), node("b", 1, parts=parts(0.4))], [link("a", "b", 5e6)])
    assert bottleneck(run) is None
    assert advice(run, "a")["better"] == (
        "a faster way to the others: 50% of a step passes on the wire, "
        "most of all a → b (5 of 20 Mbit/s, 50 ms one way)"
    )
    assert advice(record([node("a", parts=parts(0.3, wire=0.5))]), "a")["better"] == (
        "a faster way to the others: 50% of a step passes on the wire"
    )
    assert advice(run, "b")["better"] == ""
    assert bottleneck(record([])) is None and bottleneck({}) is None


def test_several_stages_of_one_node() -> None:
    run = {**record([node("a", 0, stages=[0, 2])]), "view": {"stages": [[0, 0], [1, 2], [3, 4]]}}
    assert advice(run, "a")["doing"] == "holds stages 0, 2 (layers 0, 3–4) of pipeline 0"


def test_who_does_not_train() -> None:
    spare = node("s", None, role="spare: its uplink would slow the run down")
    run = record([spare, node("w", None, role="waits for the first view"), {"node": "g", "in": False}])
    assert advice(run, "s") == {
        "doing": "is held as a spare",
        "use": "steps in when another node goes",
        "better": "its uplink would slow the run down",
    }
    assert advice(run, "w")["doing"] == "waits for the first view"
    assert advice(run, "g")["doing"] == advice(run, "nobody")["doing"] == "is not in the run"


def test_regions_are_who_is_near() -> None:
    links = [
        {**link("a", "b", None), "latency_s": 0.001},
        link("b", "c", None),
        {**link("c", "d", None), "latency_s": 0.0},
    ]
    hosts = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.1.1", "d": "10.0.1.2", "e": "10.0.1.2"}
    assert regions("abcde", links, hosts) == [["a", "b"], ["c", "d", "e"]]
    assert regions([], [], {}) == []
    assert regions("ab", [], {"a": "x", "b": "y"}) == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("used", "most", "text"),
    [(18e6, 20e6, "18 of 20 Mbit/s"), (4.2e8, 1e9, "0.42 of 1 Gbit/s"), (3.0, 8.0, "3 of 8 bit/s")],
)
def test_rates(used: float, most: float, text: str) -> None:
    assert of_text(used, most) == text
