"""The main job trained over emulated WANs: a coordinator and nodes, each in its own network namespace.

Rates are scaled to this machine's compute (`SCALE`): the model is about a thousand times smaller than the published
ones, so the links are a twentieth as fast, and the delays are the real ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farflung.deploy.wan import build, files, lab
from farflung.deploy.wan.cli import prepare
from farflung.deploy.wan.run import run
from farflung.deploy.wan.topology import dns_name

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
SCALE = 0.05
UNIGRAM = 3.31  # nats a byte: what is learnt without any order of letters

JOB = """
[run]
name = "wan"
seed = 1
steps = {steps}
[model]
family = "gpt2"
layers = 2
width = 64
heads = 4
context = 64
[data]
text = ["text/*.txt"]
tokenizer = "bytes"
validation = 0.05
[train]
batch = 32
microbatch = {microbatch}
optimizer = "adamw"
learning_rate = 5e-3
warmup_steps = 10
eval_every = {steps}
[parallel]
stages = {stages}
pipelines = {pipelines}
min_nodes = {nodes}
[updates]
mode = "{mode}"
codec = "{codec}"
{updates}
[activations]
forward = "{forward}"
backward = "{backward}"
[checkpoint]
every = {steps}
keep = 1
"""
COMPRESSED = {
    "mode": "delta",
    "codec": "cocktail:random=0.1,top=0.2,bits=4",
    "updates": "every = 1\noverlap = 1\ndense_rounds = 5",
    "forward": "int8",
    "backward": "int8",
}
EXACT = {"mode": "gradient", "codec": "none", "updates": "", "forward": "none", "backward": "none"}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Any]:
    """`job(**values)` writes a job file beside real English text (this machine's own licences) and returns its path."""
    why = build.why_not() or (None if os.access("/dev/net/tun", os.R_OK | os.W_OK) else "the relay needs /dev/net/tun")
    if why:
        pytest.skip(why)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "english.txt").write_text(english()[:400_000], encoding="utf-8")

    def write(name: str = "job", **values: Any) -> Path:
        path = tmp_path / f"{name}.toml"
        path.write_text(JOB.format(**{"microbatch": 8, "stages": 2, **values}))
        return path

    yield write


def english() -> str:
    """The documentation strings of the standard library: 400 kB of English that every Python has."""
    words = []
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        words += re.findall(r'"""(.+?)"""', path.read_text(encoding="utf-8", errors="replace"), re.DOTALL)
    return "\n".join(words)


def train(topology: str, path: Path, **options: Any) -> list[dict[str, Any]]:
    """The events of a run that ended well, on a WAN of this test's own."""
    events: list[dict[str, Any]] = []
    made = prepare(
        topology, f"t{os.getpid()}-{path.stem}", options.pop("scale", SCALE), options.pop("hosts_per_region", None)
    )
    state = path.parent / f"state-{path.stem}"
    try:
        status = run(made, str(path), lambda e: events.append(dict(e)), state=str(state), backend="relay", **options)
    except Exception as error:
        logs = "\n".join(f"--- {log.name}\n{log.read_text()[-1500:]}" for log in sorted((state / "logs").glob("*.log")))
        raise AssertionError(f"{error}\n{[e for e in events if e['event'] in ('warning', 'wan')]}\n{logs}") from error
    assert status == 0
    assert made.name not in lab.names(), "the WAN is gone with its run"
    return events


def of(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [e for e in events if e["event"] == kind]


def losses(events: list[dict[str, Any]]) -> list[float]:
    return [e["loss"] for e in sorted(of(events, "step"), key=lambda e: e["step"])]


def test_us_regional(job: Any) -> None:
    events = train("us-regional", job(steps=60, pipelines=2, nodes=4, **COMPRESSED), hosts_per_region=1)
    assert len(of(events, "joined")) == 4
    assert losses(events)[-1] < UNIGRAM
    assert of(events, "done")[0]["steps"] == 60
    step = of(events, "step")[-1]
    assert step["bytes_updates"] + step["bytes_activations"] < step["bytes_dense"]
    assert [e["what"] for e in of(events, "wan")] == ["up", "lateness"]


def test_worldwide(job: Any) -> None:
    events = train("worldwide", job(steps=30, microbatch=4, pipelines=4, nodes=8, **COMPRESSED))
    assert len(of(events, "joined")) == 8
    assert losses(events)[-1] < 0.9 * losses(events)[0]
    assert of(events, "done")[0]["steps"] == 30


def test_volunteers(job: Any) -> None:
    """Hosts with narrow uplinks train, and nobody waits for the two behind NAT, which dial the others."""
    nat = {dns_name(h.name) for h in files.load("volunteers").hosts if h.nat}
    assert nat == {"cable", "dsl"}
    events = train("volunteers", job(steps=40, stages=1, pipelines='"auto"', nodes=3, **COMPRESSED), scale=1.0)
    assert {e["node"] for e in of(events, "joined")} == {"rented", "fibre", "campus"} | nat
    said = {e["node"]: e["why"] for e in of(events, "joined") if e["node"] in nat}
    assert all("nobody can dial it" in why for why in said.values())
    assert of(events, "done")[0]["steps"] == 40
    assert losses(events)[-1] < 0.9 * losses(events)[0]


def test_volunteers_behind_nat_train_too(job: Any) -> None:
    path = job(steps=10, stages=1, pipelines=5, microbatch=4, nodes=5, **COMPRESSED)
    events = train("volunteers", path, scale=1.0)
    assert {"cable", "dsl"} <= {e["node"] for e in of(events, "joined")}
    view = of(events, "view")[0]
    assert {"cable", "dsl"} <= {name for row in view["pipelines"] for name in row}, view
    assert of(events, "done")[0]["steps"] == 10


def test_bad_day(job: Any) -> None:
    events = train("bad-day", job(steps=60, pipelines=2, nodes=4, **COMPRESSED), scale=0.5)
    assert of(events, "done")[0]["steps"] == 60
    assert losses(events)[-1] < UNIGRAM


@pytest.mark.parametrize(("topology", "scale", "each"), [("us-regional", SCALE, 1), ("bad-day", 1.0, 2)])
def test_without_a_codec_a_wan_changes_nothing(job: Any, topology: str, scale: float, each: int) -> None:
    """The project's first correctness test, over a WAN: the loss curve is that of one node alone, up to rounding."""
    values = {"steps": 20, **EXACT}
    alone = train("lan", job("alone", stages=1, pipelines=1, nodes=1, **values), scale=1.0, nodes=["lan/0"])
    spread = train(
        topology, job("spread", stages=2, pipelines=2, nodes=4, **values), scale=scale, hosts_per_region=each
    )
    assert len(losses(alone)) == len(losses(spread)) == 20
    for one, four in zip(losses(alone), losses(spread), strict=True):
        assert abs(one - four) <= 2e-4 * one
    assert abs(of(alone, "done")[0]["eval_loss"] - of(spread, "done")[0]["eval_loss"]) <= 1e-3
