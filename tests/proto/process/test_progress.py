"""Long work is told, short work is not."""

from typing import Any

from farflung.cli.screen.events.sentences import sentence
from farflung.node.models.weights.fetch import telling
from farflung.proto.process.progress import Meter


def test_nothing_in_the_first_two_seconds_then_once_a_second() -> None:
    times, told = iter((0.0, 0.5, 1.9, 2.0, 2.0, 2.5, 2.9, 3.0, 3.0, 9.0, 9.0)), list[dict[str, Any]]()
    meter = Meter("tokenising", "tokens", told.append, clock=lambda: next(times))
    for _ in range(7):
        meter.add(100)
    assert [event["done"] for event in told] == [300, 600, 700]
    assert told[0].items() >= {"event": "progress", "what": "tokenising", "unit": "tokens"}.items()


def test_what_is_fetched_is_counted_by_artifact(monkeypatch: Any) -> None:
    monkeypatch.setattr("farflung.proto.process.progress.FIRST_S", 0.0)
    told: list[dict[str, Any]] = []
    fetch = telling(lambda name, offset=0, length=None: bytes(length or 10), told.append)
    assert fetch("data/tokens", 0, 5) == bytes(5) and fetch("model/a") == bytes(10)
    assert [(event["what"], event["done"], event["unit"]) for event in told] == [
        ("fetching data/tokens", 5, "bytes"),
        ("fetching model/a", 10, "bytes"),
    ]


def test_a_person_reads_it() -> None:
    assert sentence({"event": "progress", "what": "tokenising", "done": 12_300_000, "unit": "tokens"}) == (
        "tokenising: 12.3 M tokens"
    )
    assert sentence({"event": "progress", "what": "fetching x", "done": 40_000_000, "unit": "bytes"}) == (
        "fetching x: 40.0 MB"
    )
    event = {
        "event": "progress",
        "what": "fetching the state",
        "done": 40_000_000,
        "of": 2_100_000_000,
        "unit": "bytes",
    }
    assert sentence(event) == "fetching the state: 40.0 MB of 2.1 GB"
