"""What `farflung wan` does, as plain functions (plain data and exit statuses), and the command itself.

farflung wan up us-regional --hosts-per-region 1 --scale 0.1
farflung wan check us-regional --picture check.svg
farflung wan exec us-regional Oregon/0 -- ping -c 3 virginia-0
farflung wan set us-regional 'Oregon->Virginia' rate=20mbit loss=1%
farflung wan down us-regional
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ...proto.errors import FarflungError
from . import check as checking
from . import enter, files, kernel, lab, picture
from .errors import WanError
from .lab import Lab
from .topology import Change, Topology, link_values

Say = Callable[[str], None]


def _silent(_: str) -> None:
    return None


def find(topology: str) -> Lab:
    """The lab that is up under a name, or under the name that a topology file has."""
    if topology in lab.names():
        return lab.load(topology)
    try:
        name = files.load(topology).name
    except WanError:
        name = topology
    return lab.load(name)


def prepare(
    topology: str | Topology,
    name: str | None = None,
    scale: float = 1.0,
    hosts_per_region: int | None = None,
    congestion: str | None = None,
) -> Topology:
    """A topology from a file or a ready name, fitted to this machine."""
    made = files.load(topology) if isinstance(topology, str) else topology
    if hosts_per_region is not None:
        if hosts_per_region < 1:
            raise WanError(f"--hosts-per-region {hosts_per_region}", "give a number from 1 up")
        made = made.only(hosts_per_region)
    if scale != 1.0:
        if not 0 < scale <= 1000:
            raise WanError(f"--scale {scale}", "give a factor above 0: 0.1 makes every rate a tenth")
        made = made.scaled(scale)
    if congestion:
        made = dataclasses.replace(made, congestion=congestion)
    if name:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", name):
            raise WanError(f"{name!r} is no name for a WAN", "use up to 40 letters, digits, '_' and '-'")
        made = dataclasses.replace(made, name=name)
    return made


def up(
    topology: str | Topology,
    backend: str | None = None,
    *,
    name: str | None = None,
    scale: float = 1.0,
    hosts_per_region: int | None = None,
    congestion: str | None = None,
    play: bool = False,
) -> dict[str, Any]:
    """Build a WAN and leave it up."""
    made = lab.up(prepare(topology, name, scale, hosts_per_region, congestion), backend)
    if play and made.topology.script:
        lab.spawn(made, "player", [sys.executable, "-m", "farflung.deploy.wan.script", made.name])
    return describe(made)


def describe(made: Lab) -> dict[str, Any]:
    """A lab as plain data."""
    hosts = [
        {"host": h.name, "address": made.topology.address(i), "namespace": made.namespace(i), "nat": h.nat}
        for i, h in enumerate(made.topology.hosts)
    ]
    return {
        "name": made.name,
        "backend": made.backend,
        "hosts": hosts,
        "coordinator": made.topology.coordinator,
        "notes": made.notes,
    }


def check(topology: str, picture_to: str | None = None, *, quick: bool = False, say: Say = _silent) -> checking.Report:
    """Measure a WAN that is up; writes the picture where asked."""
    report = checking.check(find(topology), quick, say)
    if picture_to:
        Path(picture_to).write_text(picture.svg(report), encoding="utf-8")
    return report


def execute(topology: str, host: str, command: Sequence[str]) -> int:
    """Run a command in a host, environment and working folder kept; its exit status."""
    made = find(topology)
    return enter.run(made, made.topology.index(host), command)


def become(topology: str, host: str, command: Sequence[str]) -> NoReturn:
    """This very process becomes a command in a host: signals, pipes and the exit status are the command's own."""
    made = find(topology)
    i = made.topology.index(host)
    if not command:
        raise WanError("no command", "farflung wan exec LAB HOST -- COMMAND")
    kernel.enter(made.namespace(i), str(made.folder / "hosts"))
    try:
        os.execvp(command[0], list(command))
    except FileNotFoundError:
        raise WanError(f"no command {command[0]!r}", "give it as you would type it after --", 127) from None
    except OSError as error:
        raise WanError(f"{command[0]}: {error.strerror}", "is it executable?", 126) from None


def set_link(topology: str, link: str, changes: Mapping[str, Any] | Sequence[str]) -> list[str]:
    """Change live links: `set_link("lan", "a->b", ["rate=20mbit"])`. Returns the pairs that are different now."""
    if not isinstance(changes, Mapping):
        bad = [c for c in changes if "=" not in c]
        if bad:
            raise WanError(
                f"{bad[0]!r} sets nothing", "write key=value, like rate=20mbit delay=50ms loss=1% queue=100ms"
            )
        changes = dict(c.split("=", 1) for c in changes)
    if not changes:
        raise WanError("nothing to set", "write key=value, like rate=20mbit delay=50ms loss=1%")
    return _change(topology, Change(0.0, "set", link, link_values(changes, link)))


def cut(topology: str, a: str, b: str | None = None) -> list[str]:
    """Cut the links between a and b in both directions, or what a link text (`a->b`) names."""
    return _change(topology, Change(0.0, "cut", a if b is None else f"{a}<->{b}"))


def restore(topology: str, a: str | None = None, b: str | None = None) -> list[str]:
    """Put links back to what the topology file says; without ends, all of them."""
    if a is None:
        return _change(topology, Change(0.0, "restore", "*->*"))
    return _change(topology, Change(0.0, "restore", a if b is None else f"{a}<->{b}"))


def _change(topology: str, change: Change) -> list[str]:
    made = find(topology)
    hosts = made.topology.hosts
    return [f"{hosts[i].name}->{hosts[j].name}" for i, j in made.change(change)]


def run(topology: str | Topology, job: str, show: Callable[[Mapping[str, Any]], None], **options: Any) -> int:
    """A whole training run on a WAN; see run.py."""
    from .run import run as train

    return train(topology, job, show, **options)


def down(topology: str) -> dict[str, Any]:
    """Take a WAN down, also after a crash."""
    if topology in lab.names():
        return lab.down(topology)
    return lab.down(find(topology).name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "farflung wan", description="A WAN in a box: emulated hosts and links on this machine."
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="up|check|exec|set|cut|restore|run|down|list")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="one object a line on stdout")
    fit = argparse.ArgumentParser(add_help=False)
    fit.add_argument(
        "--backend", choices=["auto", *lab.BACKENDS], default="auto", help="netem (kernel) or relay (user space)"
    )
    fit.add_argument("--name", help="name of this WAN; two with different names live side by side")
    fit.add_argument("--scale", type=float, default=1.0, metavar="FACTOR", help="multiply every rate")
    fit.add_argument("--hosts-per-region", type=int, metavar="N", help="at most N hosts of each region")
    fit.add_argument("--congestion", metavar="NAME", help="TCP congestion control of every host: bbr, cubic, ...")

    def verb(name: str, words: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        return verbs.add_parser(name, help=words, description=words, parents=[common, *parents])

    sub = verb("up", "build a WAN", fit)
    sub.add_argument("topology", help=f"a file, FILE:CASE, or one of {', '.join(files.ready())}")
    sub.add_argument("--play", action="store_true", help="play the topology's timed changes")
    sub = verb("check", "measure every pair against what was set")
    sub.add_argument("topology")
    sub.add_argument("--picture", metavar="OUT.svg", help="draw the matrix")
    sub.add_argument("--quick", action="store_true", help="round trips only")
    sub = verb("exec", "run a command in a host")
    sub.add_argument("topology")
    sub.add_argument("host")
    sub.add_argument("command", nargs=argparse.REMAINDER)
    sub = verb("set", "change live links")
    sub.add_argument("topology")
    sub.add_argument("link", help="'a->b' or 'a<->b', in quotes; a and b are hosts, regions or *")
    sub.add_argument("changes", nargs="+", help="rate=20mbit delay=50ms jitter=2ms loss=1%% queue=100ms")
    sub = verb("cut", "cut the links between two")
    sub.add_argument("topology")
    sub.add_argument("a")
    sub.add_argument("b", nargs="?")
    sub = verb("restore", "put links back to what the file says")
    sub.add_argument("topology")
    sub.add_argument("a", nargs="?")
    sub.add_argument("b", nargs="?")
    sub = verb("run", "train a job: a coordinator and nodes, each in its host", fit)
    sub.add_argument("topology")
    sub.add_argument("job")
    sub.add_argument("--state", metavar="DIR", help="the run's folder (default runs/NAME)")
    sub.add_argument("--nodes", metavar="HOST,...", help="the hosts that train (default: all)")
    sub.add_argument("--insecure", action="store_true", help="no TLS")
    sub = verb("down", "remove a WAN, also after a crash")
    sub.add_argument("topology")
    verb("list", "the WANs that are up")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    options = _parser().parse_args(argv)
    out = Printer(options.json)
    try:
        return _obey(options, out)
    except FarflungError as error:
        if options.debug:
            raise
        out.error(error)
        return error.status
    except KeyboardInterrupt:
        return 130


class Printer:
    """JSON lines for programs, sentences for people; progress on stderr."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def __call__(self, event: str, lines: Sequence[str], **values: Any) -> None:
        """One thing that happened."""
        text = json.dumps({"event": event, **values}) if self.as_json else "\n".join(lines)
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def progress(self, words: str) -> None:
        """What is being done now."""
        sys.stderr.write(f"{words}\n")

    def error(self, error: FarflungError) -> None:
        """What went wrong, and what to do."""
        if self.as_json:
            self("error", [], message=error.message, hint=error.hint)
            return
        sys.stderr.write(f"error: {error.message}\n" + (f"hint: {error.hint}\n" if error.hint else ""))


def _obey(options: argparse.Namespace, out: Printer) -> int:
    verb = options.verb
    if verb == "up":
        made = up(
            options.topology,
            options.backend,
            name=options.name,
            scale=options.scale,
            hosts_per_region=options.hosts_per_region,
            congestion=options.congestion,
            play=options.play,
        )
        lines = [f"{made['name']} is up, backend {made['backend']}"]
        lines += [
            f"  {h['host']:<20} {h['address']:<14}{'behind NAT' if h['nat'] else ''}".rstrip() for h in made["hosts"]
        ]
        out("up", [*lines, *(f"note: {n}" for n in made["notes"]), f"next: farflung wan check {made['name']}"], **made)
    elif verb == "check":
        report = check(options.topology, options.picture, quick=options.quick, say=out.progress)
        out("check", checking.table(report), **report.plain())
        return 0 if report.ok else 4
    elif verb == "exec":
        command = options.command[1:] if options.command[:1] == ["--"] else options.command
        become(options.topology, options.host, command)
    elif verb in ("set", "cut", "restore"):
        if verb == "set":
            changed = set_link(options.topology, options.link, options.changes)
        elif verb == "cut":
            changed = cut(options.topology, options.a, options.b)
        else:
            changed = restore(options.topology, options.a, options.b)
        out(verb, [f"{len(changed)} links changed" + (": " + ", ".join(changed[:6]) if changed else "")], links=changed)
    elif verb == "run":
        return _run(options, out)
    elif verb == "down":
        gone = down(options.topology)
        out(
            "down",
            [f"{gone['name']} is down: {len(gone['namespaces'])} namespaces, {gone['processes']} processes"],
            **gone,
        )
    else:
        for name in lab.names():
            made = describe(lab.load(name))
            out("lab", [f"{name}: {made['backend']}, {len(made['hosts'])} hosts"], **made)
    return 0


def _run(options: argparse.Namespace, out: Printer) -> int:
    def show(event: Mapping[str, Any]) -> None:
        words = " ".join(f"{k}={v}" for k, v in event.items() if k not in ("event", "time"))
        out(
            str(event.get("event")),
            [f"{event.get('event')}: {words}"],
            **{k: v for k, v in event.items() if k != "event"},
        )

    hosts = options.nodes.split(",") if options.nodes else None
    fit = {
        k: getattr(options, k)
        for k in ("backend", "name", "scale", "hosts_per_region", "congestion", "insecure", "state")
    }
    return run(options.topology, options.job, show, nodes=hosts, **fit)
