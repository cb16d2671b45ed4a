"""A WAN that is up: its namespaces, its backend, its links as they are now, its state folder.

/run/farflung-wan/NAME/   state.json   what was asked, which namespaces, which processes, the links as they are now
                          hosts        /etc/hosts of every host
                          relay.sock   relay.log   relay.ready   stat.json        (backend relay)
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from . import files, netem, system
from .errors import WanError
from .kernel import NETNS
from .lateness import Lateness, between
from .topology import Change, Link, Pair, Topology, apply


def state_root() -> Path:
    """Where labs keep their state: FARFLUNG_WAN_STATE or /run/farflung-wan."""
    return Path(os.environ.get("FARFLUNG_WAN_STATE", "/run/farflung-wan"))


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """One process at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@dataclasses.dataclass
class Lab:
    """One WAN that is up."""

    name: str
    backend: str
    topology: Topology
    links: dict[Pair, Link]
    namespaces: list[str]
    process: dict[str, tuple[int, str]]  # "relay" and "player": process id and start time
    notes: list[str]

    @property
    def folder(self) -> Path:
        return state_root() / self.name

    def namespace(self, i: int) -> str:
        """The network namespace of host i."""
        return self.namespaces[i]

    def save(self) -> None:
        """Write state.json whole or not at all."""
        data = {
            "name": self.name,
            "backend": self.backend,
            "topology": files.to_json(self.topology),
            "links": [[i, j, dataclasses.asdict(link)] for (i, j), link in self.links.items()],
            "namespaces": self.namespaces,
            "process": self.process,
            "notes": self.notes,
        }
        fresh = self.folder / "state.json.new"
        fresh.write_text(json.dumps(data))
        fresh.replace(self.folder / "state.json")

    def change(self, change: Change) -> dict[Pair, Link]:
        """Set, cut or restore live links; returns those that are different now."""
        with lock(self.folder / ".lock"):
            self.links = load(self.name).links  # somebody else may have changed them since
            changed = apply(self.topology, self.links, change)
            if changed:
                self._set(changed)
        return changed

    def _set(self, links: Mapping[Pair, Link]) -> None:
        if self.backend == "relay":
            changes = [[i, j, dataclasses.asdict(link)] for (i, j), link in links.items()]
            for first in range(0, len(changes), 500):  # a datagram has a largest size
                self.ask({"do": "set", "links": changes[first : first + 500]})
        else:
            for i in sorted({i for i, _ in links}):
                system.tc(
                    [netem.change(self.topology, a, b, v) for (a, b), v in links.items() if a == i], self.namespace(i)
                )
        self.links.update(links)
        self.save()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request to the relay."""
        with (
            tempfile.TemporaryDirectory(dir=self.folder) as corner,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mine,
        ):
            mine.bind(f"{corner}/answer")
            mine.settimeout(10)
            mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            try:
                mine.connect(str(self.folder / "relay.sock"))
                mine.send(json.dumps(request).encode())
                answer: dict[str, Any] = json.loads(mine.recv(1 << 22))
            except (OSError, TimeoutError) as error:
                log = (self.folder / "relay.log").read_text()[-500:] if (self.folder / "relay.log").exists() else ""
                raise WanError(
                    f"the relay of {self.name} does not answer: {error}", log or f"farflung wan down {self.name}", 4
                ) from error
        if "error" in answer:
            raise WanError(f"the relay of {self.name} refused: {answer['error']}", "", 4)
        return answer

    def stat(self) -> dict[str, Any] | None:
        """The relay's counters; None where the kernel does the work (netem)."""
        if self.backend != "relay":
            return None
        dropped = sum(system.dropped(self.namespace(i), netem.DEVICE) for i in range(len(self.topology.hosts)))
        return {**self.ask({"do": "stat"}), "missed": dropped}

    def alive(self) -> bool:
        """Whether the namespaces and the relay are still there."""
        here = all(os.path.exists(f"{NETNS}/{n}") for n in self.namespaces)
        relay = self.process.get("relay")
        return here and (relay is None or system.started(relay[0]) == relay[1])


def late_between(before: dict[str, Any] | None, after: dict[str, Any] | None) -> Lateness | None:
    """The relay's lateness between two stats."""
    if before is None or after is None:
        return None
    missed = after["missed"] - before["missed"]
    return between(before["late"], after["late"], after["cpu"] - before["cpu"], after["time"] - before["time"], missed)


def names() -> list[str]:
    """The labs that have a state folder."""
    root = state_root()
    return sorted(p.parent.name for p in root.glob("*/state.json")) if root.is_dir() else []


def load(name: str) -> Lab:
    """A lab by its name."""
    path = state_root() / name / "state.json"
    try:
        data = json.loads(path.read_text())
    except OSError:
        up = ", ".join(names()) or "none"
        raise WanError(f"the WAN {name} is not up", f"farflung wan up {name} (up now: {up})") from None
    links = {(i, j): Link(**link) for i, j, link in data["links"]}
    process = {role: (int(pid), str(when)) for role, (pid, when) in data["process"].items()}
    return Lab(**{**data, "topology": files.from_json(data["topology"]), "links": links, "process": process})
