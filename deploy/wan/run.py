"""`wan run`: a training run on a WAN. The coordinator and each node run in hosts of their own, by the ordinary
commands.

The events are the coordinator's (as in `farflung run`) and further `wan` events: the emulated topology, each timed
change of its script, and at the end whether the emulator kept up.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...cli.local.children import Child, Children, Ended, Said
from ...cli.local.run import run_name
from ...cli.screen.output import Output
from ...cli.screen.terminal import screen
from ...proto.errors import FarflungError, RunFailed
from . import build, check, lab, lateness, script
from .errors import WanError
from .files import prepare
from .lab import Lab
from .topology import Change, Topology, dns_name

PORT = 7070
Show = Callable[[Mapping[str, Any]], None]
_START_SECONDS = 180.0  # reading and tokenising the data
_PARTING_SECONDS = 30.0


@dataclasses.dataclass(frozen=True)
class Training:
    """A training run on a WAN. `hosts`: the numbers of the hosts that get a node; `threads`: for each node's
    computing."""

    job: Path
    state: Path
    hosts: tuple[int, ...]
    insecure: bool = False
    device: str = "cpu"


def run(
    topology: str | Topology,
    job: str,
    show: Show,
    *,
    nodes: Sequence[str] | None = None,
    state: str | None = None,
    insecure: bool = False,
    device: str = "cpu",
    **fit: Any,
) -> int:
    """Train a job on a WAN. Returns the coordinator's exit status. A running WAN is used and left running; else one is
    built and taken down afterwards. `fit`: backend, name, scale, hosts_per_region, congestion, as for `up`. Raises
    WanError, or the error with which the coordinator or the nodes ended."""
    with _interruptible(), _on(topology, fit) as made:
        names = made.topology
        chosen = tuple(names.index(n) for n in nodes) if nodes else tuple(range(len(names.hosts)))
        folder = Path(state) if state else Path("runs") / f"{run_name(Path(job))}-{made.name}"
        training = Training(Path(job), folder, chosen, insecure, device)
        report = check.check(made, quick=True)
        inside = {"hosts": [h.name for h in names.hosts], "coordinator": names.coordinator, "state": str(folder)}
        show(_event(what="up", name=made.name, backend=made.backend, check=report.why, **inside))
        if not report.ok:
            show(
                {
                    "event": "warning",
                    "time": time.time(),
                    "node": "",
                    "message": f"this WAN is not as set: {report.why}",
                }
            )
        before = made.stat()
        children = Children(folder / "logs")
        stop = threading.Event()
        try:
            return _watch(made, training, children, show, stop)
        finally:
            stop.set()
            children.stop()
            late = lab.late_between(before, made.stat()) if made.alive() else None
            if late is not None and late.packets:
                usable, why = lateness.verdict(late, names.smallest_delay_ms())
                show(_event(what="lateness", usable=usable, why=why, **dataclasses.asdict(late)))
                if not usable:
                    show(
                        {
                            "event": "warning",
                            "time": time.time(),
                            "node": "",
                            "message": f"don't trust its times: {why}",
                        }
                    )


@contextlib.contextmanager
def _on(topology: str | Topology, fit: Mapping[str, Any]) -> Iterator[Lab]:
    """The lab to run on."""
    known = {k: v for k, v in fit.items() if v is not None}
    backend = known.pop("backend", None)
    wanted = prepare(topology, **known) if not (isinstance(topology, str) and topology in lab.names()) else None
    name = wanted.name if wanted is not None else str(topology)
    if name in lab.names():
        yield lab.load(name)
        return
    if wanted is None:
        raise WanError(f"the WAN {name} is not up", f"farflung wan up {name}")
    made = build.up(wanted, backend)
    try:
        yield made
    finally:
        build.down(made.name)


def _watch(made: Lab, training: Training, children: Children, show: Show, stop: threading.Event) -> int:
    topology = made.topology
    home = topology.index(topology.coordinator)
    flags = ["--insecure"] if training.insecure else []
    address = f"{topology.address(home)}:{PORT}"
    words = ["coordinator", "start", str(training.job), "--state", str(training.state), "--listen", address]
    coordinator = _start(made, children, home, "coordinator", [*words, "--advertise", address, *flags])
    nodes: list[Child] = []
    began, playing, finished = time.monotonic(), False, False
    while True:
        word = children.next(timeout=1.0)
        if word is None:
            if not nodes and time.monotonic() - began > _START_SECONDS:
                raise RunFailed(
                    f"the coordinator did not listen within {_START_SECONDS:.0f} s", f"see {coordinator.log}"
                )
        elif isinstance(word, Said):
            kind = word.event.get("event")
            if word.child is coordinator and kind != "error":
                show(word.event)
                finished = finished or kind == "done"
                if kind == "listening" and not nodes:
                    nodes = _join(made, training, children, str(word.event["link"]), flags)
                if kind == "step" and not playing and topology.script:
                    playing = True
                    _play(made, stop, show)
            elif word.child is not coordinator and kind == "warning":
                show(word.event)
        elif word.child is coordinator:
            return _end(children, nodes, word)
        elif not finished:
            message = f"its process has ended: {word.child.end_text()}"
            show({"event": "warning", "time": time.time(), "node": word.child.name, "message": message})
            if not any(node.alive for node in nodes):
                raise RunFailed(
                    f"no node is left: {word.child.name} {word.child.end_text()}", f"its log is {word.child.log}"
                )


def _start(made: Lab, children: Children, i: int, name: str, words: Sequence[str]) -> Child:
    """Start `farflung WORDS` in host i: `wan exec` becomes the command, so signals and the lifeline are its own."""
    host = made.topology.hosts[i].name
    inside = ["wan", "exec", made.name, host, "--", sys.executable, "-m", "farflung", *words]
    return children.start(name, inside, {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")})


def _join(made: Lab, training: Training, children: Children, link: str, flags: Sequence[str]) -> list[Child]:
    nodes = []
    for i in training.hosts:
        host = made.topology.hosts[i]
        name = dns_name(host.name)
        words = [
            "join",
            link,
            "--name",
            name,
            "--device",
            training.device,
            "--cache",
            str(training.state / "nodes" / name),
        ]
        nodes.append(_start(made, children, i, name, [*words, *flags]))
    return nodes


def _play(made: Lab, stop: threading.Event, show: Show) -> None:
    """The topology's timed changes, from now on."""

    def say(at: float, change: Change, count: int) -> None:
        show(_event(what="change", at=round(at, 3), change=script.words(change), changed=count))

    threading.Thread(target=script.play, args=(made, stop, say), name="wan-script", daemon=True).start()


def _end(children: Children, nodes: Sequence[Child], word: Ended) -> int:
    """The coordinator has ended: let the nodes leave, then return its status or raise its error."""
    coordinator = word.child
    if word.status == 0:
        children.finish(nodes, _PARTING_SECONDS)
        return 0
    if coordinator.error:
        status = word.status if word.status > 0 else 4
        raise FarflungError(str(coordinator.error.get("message")), str(coordinator.error.get("hint", "")), status)
    raise RunFailed(f"the coordinator {coordinator.end_text()}", f"its log is {coordinator.log}")


def _event(**values: Any) -> dict[str, Any]:
    return {"event": "wan", "time": time.time(), **values}


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends a run the way Ctrl-C does, so that the WAN is taken down."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def command(options: argparse.Namespace) -> int:
    """`farflung wan run`, shown as `farflung run` is."""
    output = Output(options.json, options.debug)
    hosts = options.nodes.split(",") if options.nodes else None
    fit = {
        k: getattr(options, k)
        for k in ("backend", "name", "scale", "hosts_per_region", "congestion", "insecure", "device", "state")
    }
    with screen(output) as shown:

        def show(event: Mapping[str, Any]) -> None:
            if event.get("event") == "wan" and not output.json:
                output.note(_told(event))
            elif event.get("event") != "listening" or output.json:  # its link and its page are inside the WAN
                shown.show(event)

        return run(options.topology, options.job, show, nodes=hosts, **fit)


def _told(event: Mapping[str, Any]) -> str:
    """A `wan` event as a line."""
    if event["what"] == "up":
        what = f"WAN {event['name']} ({event['backend']}), {len(event['hosts'])} hosts: {event['check']}"
        return f"{what}\nthe coordinator is in {event['coordinator']}; from anywhere: farflung status {event['state']}"
    if event["what"] == "change":
        return f"WAN after {event['at']:.0f} s: {event['change']} ({event['changed']} changed)"
    return f"WAN: {event['why']}"
