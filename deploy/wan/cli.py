"""The functions behind `farflung wan`, which return plain data and exit statuses, and the command itself.

farflung wan up us-regional --hosts-per-region 1 --scale 0.1
farflung wan check us-regional --picture check.svg
farflung wan exec us-regional Oregon/0 -- ping -c 3 virginia-0
farflung wan set us-regional 'Oregon->Virginia' rate=20mbit loss=1%
farflung wan down us-regional
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ...proto.errors import FarflungError
from . import arguments, build, enter, files, kernel, lab, picture
from . import check as checking
from .errors import WanError
from .files import prepare
from .lab import Lab
from .run import command as obey_run
from .run import run as train
from .topology import Change, Topology, change_values

Say = Callable[[str], None]


def _silent(_: str) -> None:
    return None


def named(topology: str) -> str:
    """The name of the running lab that has this name, or the name of this topology file."""
    if topology in lab.names():
        return topology
    try:
        return files.load(topology).name
    except FarflungError:
        return topology


def find(topology: str) -> Lab:
    """The running lab that has this name, or the name of this topology file."""
    return lab.load(named(topology))


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
    made = build.up(prepare(topology, name, scale, hosts_per_region, congestion), backend)
    if play and made.topology.script:
        build.spawn(made, "player", [sys.executable, "-m", "farflung.deploy.wan.script", made.name])
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
    if picture_to and (Path(picture_to).suffix != ".svg" or not Path(picture_to).absolute().parent.is_dir()):
        raise WanError(f"cannot draw {picture_to}", "name an .svg file in a folder that exists: --picture check.svg")
    report = checking.check(find(topology), quick, say)
    if picture_to:
        Path(picture_to).write_text(picture.svg(report), encoding="utf-8")
    return report


def execute(topology: str, host: str, command: Sequence[str]) -> int:
    """Run a command in a host, with this environment and working folder. Returns its exit status."""
    made = find(topology)
    return enter.run(made, made.topology.index(host), command)


def become(topology: str, host: str, command: Sequence[str]) -> NoReturn:
    """Replace this process by a command in a host (exec), so that signals, pipes and the exit status are the command's
    own."""
    made = find(topology)
    i = made.topology.index(host)
    if not command:
        raise WanError("no command", "farflung wan exec LAB HOST -- COMMAND")
    made.require_alive()
    kernel.enter(made.namespace(i), str(made.folder / "hosts"))
    try:
        os.execvp(command[0], list(command))
    except FileNotFoundError:
        raise WanError(f"no command {command[0]!r}", "give it as you would type it after --", 127) from None
    except OSError as error:
        raise WanError(f"{command[0]}: {error.strerror}", "is it executable?", 126) from None


def change(topology: str, target: str, changes: Mapping[str, Any] | Sequence[str]) -> list[str]:
    """Change live links, `change("lan", "a->b", ["rate=20mbit"])`, or a host and all its links, `change("lan", "a",
    ["uplink=5mbit", "loss=1%"])`. Returns the names of the hosts and links that are different now."""
    if not isinstance(changes, Mapping):
        bad = [c for c in changes if "=" not in c]
        if bad:
            raise WanError(
                f"{bad[0]!r} sets nothing", "write key=value, like rate=20mbit delay=50ms loss=1% queue=100ms"
            )
        changes = dict(c.split("=", 1) for c in changes)
    if not changes:
        raise WanError("nothing to set", "write key=value, like rate=20mbit delay=50ms loss=1%")
    return _change(topology, Change(0.0, "set", target, change_values(changes, target, target)))


def cut(topology: str, a: str, b: str | None = None) -> list[str]:
    """Cut the links between a and b in both directions, the links that a text (`a->b`) names, or all links of a
    host."""
    return _change(topology, Change(0.0, "cut", a if b is None else f"{a}<->{b}"))


def restore(topology: str, a: str | None = None, b: str | None = None) -> list[str]:
    """Restore the topology file's values: of links between a and b, of a host and all its links, or of everything."""
    return _change(topology, Change(0.0, "restore", a or "*" if b is None else f"{a}<->{b}"))


def _change(topology: str, change: Change) -> list[str]:
    return find(topology).change(change)


def run(topology: str | Topology, job: str, show: Callable[[Mapping[str, Any]], None], **options: Any) -> int:
    """A whole training run on a WAN; see run.py."""
    return train(topology, job, show, **options)


def down(topology: str) -> dict[str, Any]:
    """Take a WAN down, also after a crash."""
    return build.down(named(topology))


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    options = arguments.parser().parse_args(argv)
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
    if verb != "list":
        build.require()
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
            changed = change(options.topology, options.target, options.changes)
        elif verb == "cut":
            changed = cut(options.topology, options.a, options.b)
        else:
            changed = restore(options.topology, options.a, options.b)
        more = f" and {len(changed) - 6} more" if len(changed) > 6 else ""
        out(verb, ["changed: " + ", ".join(changed[:6]) + more if changed else "it was so already"], changed=changed)
    elif verb == "run":
        return obey_run(options)
    elif verb == "down":
        gone = down(options.topology)
        out(
            "down",
            [f"{gone['name']} is down; removed: namespaces {len(gone['namespaces'])}, processes {gone['processes']}"],
            **gone,
        )
    else:
        for name in lab.names():
            try:
                there = lab.load(name)
                there.require_alive()
            except FarflungError as error:  # a lab that can't be read must not hide the others
                out("lab", [f"{name}: {error.message}; hint: {error.hint}"], name=name, problem=error.message)
                continue
            out("lab", [f"{name}: {there.backend}, {len(there.topology.hosts)} hosts"], **describe(there))
        if not lab.names() and not options.json:
            out("none", ["no WAN is up"])
    return 0
