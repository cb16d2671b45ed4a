"""The main job trained over emulated WANs: a coordinator and nodes, each in its own network namespace.

Rates are scaled to this machine's compute (`SCALE`): the model is about a thousand times smaller than the published
ones, so the links are a twentieth as fast, and the delays are the real ones.

The tests marked `wan` (`make wan`) run on every change, also on a busy machine. They assert results and states and no
time. An emulator that was late makes a link slower and never faster, and what a run computes must not depend on that,
so such a run counts; that the links are as far as they were set, and lose what they should, is asserted in each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plain_loop import plain_losses

from farflung.coordinator.store.store import Store
from farflung.deploy.wan import build, files, lab, probe
from farflung.deploy.wan.files import prepare
from farflung.deploy.wan.lab import Lab
from farflung.deploy.wan.run import run
from farflung.deploy.wan.topology import Topology, dns_name
from farflung.job.data.facts import Facts
from farflung.job.files import load_job
from farflung.node.data.dataset import Tokens

pytestmark = pytest.mark.timeout(1200)
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


def train(made: Topology, path: Path, **options: Any) -> list[dict[str, Any]]:
    """The events of a run that ended well."""
    events: list[dict[str, Any]] = []
    state = state_of(path)
    try:
        status = run(made, str(path), lambda e: events.append(dict(e)), state=str(state), backend="relay", **options)
    except Exception as error:
        logs = "\n".join(f"--- {log.name}\n{log.read_text()[-1500:]}" for log in sorted((state / "logs").glob("*.log")))
        raise AssertionError(f"{error}\n{[e for e in events if e['event'] in ('warning', 'wan')]}\n{logs}") from error
    assert status == 0
    return events


def state_of(path: Path) -> Path:
    return path.parent / f"state-{path.stem}"


def own(topology: str, scale: float = SCALE, hosts_per_region: int | None = None) -> Topology:
    """A ready topology under a name of this test's own."""
    return prepare(topology, f"t{os.getpid()}-{topology}", scale, hosts_per_region)


@contextlib.contextmanager
def emulated(topology: Topology) -> Iterator[Lab]:
    """A topology built, every pair of which is as far as it was set or farther (jitter aside); it is gone after."""
    made = build.up(topology, "relay")
    try:
        links = topology.links
        pairs = [(i, j) for i, j in links if not topology.hosts[j].nat]
        for pair, times in probe.rtt(made, pairs, 10, 0.02).items():
            jitter = links[pair].jitter_ms + links[pair[::-1]].jitter_ms
            assert times and min(times) >= topology.rtt_ms(pair) - 1 - 5 * jitter, (pair, times)
        yield made
    finally:
        build.down(made.name)
    assert made.name not in lab.names()


def of(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [e for e in events if e["event"] == kind]


def joined(events: list[dict[str, Any]]) -> set[str]:
    return {e["node"] for e in of(events, "joined")}


def losses(events: list[dict[str, Any]]) -> list[float]:
    return [e["loss"] for e in sorted(of(events, "step"), key=lambda e: e["step"])]


def plain(path: Path) -> list[float]:
    """The losses of one process that trains the same job in a plain loop, on the tokens that the run was given."""
    store = Store(state_of(path))
    facts = Facts.model_validate_json(store.get("facts") or "")
    store.close()
    tokens = (state_of(path) / "artifacts" / facts.tokens_digest).read_bytes()
    job = load_job(path)
    assert facts.steps is not None
    return plain_losses(job, facts, Tokens(facts, lambda _, at, size: tokens[at : at + size]), facts.steps)


@pytest.mark.wan
@pytest.mark.parametrize("topology", ["us-regional", "bad-day"])
def test_without_a_codec_a_wan_changes_nothing(job: Any, topology: str) -> None:
    """The project's first correctness test, over a WAN: the losses are those of a plain loop, up to rounding."""
    path = job(steps=12, pipelines=2, nodes=4, **EXACT)
    wanted = own(topology, 1.0, None) if topology == "bad-day" else own(topology, SCALE, 1)
    # the link that flaps does so from the first step on, and faster than twelve steps can be
    start = min((c.at for c in wanted.script), default=0.0)
    faster = [dataclasses.replace(c, at=(c.at - start) / 4, every=(c.every or 0) / 4) for c in wanted.script]
    with emulated(dataclasses.replace(wanted, script=tuple(faster))) as made:
        events = train(made.topology, path)
        lost = sum(count for _, _, count in (made.stat() or {})["lost"])
    assert of(events, "done")[0]["steps"] == 12
    assert losses(events) == pytest.approx(plain(path), rel=2e-4)
    assert losses(events)[-1] < 0.8 * losses(events)[0]
    assert len({name for row in of(events, "view")[0]["pipelines"] for name in row}) == 4
    changes = {e["change"].split()[0] for e in of(events, "wan") if e["what"] == "change"}
    if topology == "bad-day":
        assert {"cut", "restore"} <= changes and lost > 0
    else:
        assert not changes and not lost


@pytest.mark.wan
def test_four_cities_of_the_world(job: Any) -> None:
    path = job(steps=10, pipelines=2, nodes=4, **COMPRESSED)
    cities = ["Oregon", "Tokyo", "London", "Virginia"]
    with emulated(own("worldwide")) as made:
        events = train(made.topology, path, nodes=cities)
    assert joined(events) == {f"{city.lower()}-0" for city in cities}
    assert of(events, "done")[0]["steps"] == 10
    assert losses(events)[-1] < 0.9 * losses(events)[0]


@pytest.mark.wan
def test_two_regions_exchange_in_two_levels(job: Any) -> None:
    """Nobody names the regions: the measured latencies do. The losses are those of a plain loop, up to rounding."""
    exact = {**EXACT, "updates": 'pattern = "two_level"'}
    path = job(steps=8, stages=1, pipelines=4, nodes=4, **exact)
    hosts = ["Virginia/0", "Virginia/1", "Oregon/0", "Oregon/1"]
    with emulated(own("us-regional", 1.0, 2)) as made:
        events = train(made.topology, path, nodes=hosts)
    assert "rounds in two levels over 2 regions" in of(events, "view")[0]["why"]
    assert of(events, "done")[0]["steps"] == 8
    assert losses(events) == pytest.approx(plain(path), rel=2e-4)


@pytest.mark.wan
def test_volunteers_behind_nat_train_too(job: Any) -> None:
    """Two of five cannot be dialled, and all five are in the first view."""
    path = job(steps=8, stages=1, pipelines=5, microbatch=4, nodes=5, **COMPRESSED)
    with emulated(own("volunteers", 1.0)) as made:
        nat = [i for i, host in enumerate(made.topology.hosts) if host.nat]
        home = made.topology.index(made.topology.coordinator)
        assert len(nat) == 2 and not any(probe.answers(made, home, i, 0.5) for i in nat)
        events = train(made.topology, path)
    hosts = {dns_name(h.name) for h in made.topology.hosts}
    assert joined(events) == {name for row in of(events, "view")[0]["pipelines"] for name in row} == hosts
    said = {e["node"]: e["why"] for e in of(events, "joined")}
    assert {n for n, why in said.items() if "nobody can dial it" in why} == {
        dns_name(made.topology.hosts[i].name) for i in nat
    }
    assert of(events, "done")[0]["steps"] == 8
    assert losses(events)[-1] < 0.9 * losses(events)[0]


@pytest.mark.wan
def test_a_link_that_becomes_slow_shows_in_training(job: Any) -> None:
    """Nobody measures it again: what training sends over it says so, in that direction alone. Results stay the same."""
    path = job(steps=14, stages=1, pipelines=2, nodes=2, **EXACT)
    table = {
        "regions": {"near": {"hosts": 2}},
        "defaults": {"delay_ms": 5, "rate": "100mbit"},
        "script": [{"at": 0, "set": "near/0->near/1", "rate": "2mbit"}],
    }
    name = f"t{os.getpid()}-slow"
    with emulated(files.parse(table, name, name)) as made:
        events = train(made.topology, path)
    store = Store(state_of(path))
    rates = {(source, target): rate for source, target, _, rate in store.links.all()}
    store.close()
    assert rates["near-0", "near-1"] < 10e6 < rates.get(("near-1", "near-0"), 100e6), rates
    assert of(events, "done")[0]["steps"] == 14
    assert losses(events) == pytest.approx(plain(path), rel=2e-4)


@pytest.mark.wan
def test_a_fast_and_a_slow_link_have_different_codecs_and_a_change_changes_them(job: Any) -> None:
    """The fast link goes without a codec until it is slow too; losses are a plain loop's, but for what codecs lose."""
    auto = {**EXACT, "forward": "auto", "backward": "auto"}
    path = job(steps=24, stages=3, pipelines=1, nodes=3, **auto)
    table = {
        "regions": {"near": {"hosts": 3}},
        "defaults": {"delay_ms": 5, "rate": "1mbit", "queue_ms": 200.0},
        "links": [
            {"between": ["near/0", "near/1"], "rate": "200mbit", "delay_ms": 2},
            {"between": ["near/1", "near/2"], "rate": "2mbit", "delay_ms": 10},
        ],
        "script": [{"at": 3, "set": "near/0<->near/1", "rate": "2mbit"}],
    }
    name = f"t{os.getpid()}-codecs"
    with emulated(files.parse(table, name, name)) as made:
        events = train(made.topology, path)
    views = [
        {frozenset(link.split(">")): codec for link, codec in view["codecs"].items() if ">" in link}
        for view in of(events, "view")
    ]
    fast, slow = frozenset({"near-0", "near-1"}), frozenset({"near-1", "near-2"})
    assert views[0][fast] == "none" != views[0][slow], views
    assert views[-1][fast] != "none", "a link that changes gets another codec with a view"
    assert losses(events) == pytest.approx(plain(path), rel=2e-2)


@pytest.mark.slow
def test_us_regional(job: Any) -> None:
    events = train(own("us-regional", SCALE, 1), job(steps=60, pipelines=2, nodes=4, **COMPRESSED))
    assert len(of(events, "joined")) == 4
    assert losses(events)[-1] < UNIGRAM
    assert of(events, "done")[0]["steps"] == 60
    step = of(events, "step")[-1]
    assert step["bytes_updates"] + step["bytes_activations"] < step["bytes_dense"]
    assert [e["what"] for e in of(events, "wan")] == ["up", "lateness"]
    assert of(events, "wan")[0]["name"] not in lab.names(), "the WAN is gone with the run that built it"


@pytest.mark.slow
def test_worldwide(job: Any) -> None:
    events = train(own("worldwide"), job(steps=30, microbatch=4, pipelines=4, nodes=8, **COMPRESSED))
    assert len(of(events, "joined")) == 8
    assert losses(events)[-1] < 0.9 * losses(events)[0]
    assert of(events, "done")[0]["steps"] == 30


@pytest.mark.slow
def test_volunteers(job: Any) -> None:
    """Hosts with narrow uplinks train, and nobody waits for the two behind NAT, which dial the others."""
    nat = {dns_name(h.name) for h in files.load("volunteers").hosts if h.nat}
    assert nat == {"cable", "dsl"}
    events = train(own("volunteers", 1.0), job(steps=40, stages=1, pipelines='"auto"', nodes=3, **COMPRESSED))
    assert {e["node"] for e in of(events, "joined")} == {"rented", "fibre", "campus"} | nat
    said = {e["node"]: e["why"] for e in of(events, "joined") if e["node"] in nat}
    assert all("nobody can dial it" in why for why in said.values())
    assert of(events, "done")[0]["steps"] == 40
    assert losses(events)[-1] < 0.9 * losses(events)[0]


@pytest.mark.slow
def test_bad_day(job: Any) -> None:
    events = train(own("bad-day", 0.5), job(steps=60, pipelines=2, nodes=4, **COMPRESSED))
    assert of(events, "done")[0]["steps"] == 60
    assert losses(events)[-1] < UNIGRAM


@pytest.mark.slow
def test_a_satellite_is_waited_for(job: Any) -> None:
    """Round trips of 2 s: two nodes join, train, and in the middle nothing comes through for 5 s. Nobody is put out."""
    path = job(steps=3, stages=1, pipelines=2, nodes=2, **EXACT)
    table = {
        "regions": {"ground": {"hosts": 2}, "ship": {}},
        "coordinator": "ground/0",
        "defaults": {"delay_ms": 0.2, "rate": "100mbit"},
        "links": [{"between": ["ground", "ship"], "delay_ms": 1000, "rate": "20mbit"}],
        "script": [{"at": 0, "cut": "ground<->ship"}, {"at": 5, "restore": "ground<->ship"}],
    }
    name = f"t{os.getpid()}-satellite"
    with emulated(files.parse(table, name, name)) as made:
        events = train(made.topology, path, nodes=["ground/1", "ship"])
    assert of(events, "done")[0]["steps"] == 3
    assert losses(events) == pytest.approx(plain(path), rel=2e-4)
    assert {"cut", "restore"} <= {e["change"].split()[0] for e in of(events, "wan") if e["what"] == "change"}
    assert not [e for e in of(events, "left") if "run is over" not in e.get("why", "")], "nobody was put out"
