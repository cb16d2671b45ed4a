"""A running WAN (lab): its namespaces, its backend, its original and its present topology, its state folder.

/run/farflung-wan/NAME/   state.json   what was asked, which namespaces, which processes, what it is now
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...proto.process.files import write_whole
from . import files, netem, system
from .errors import WanError
from .kernel import NETNS
from .lateness import Lateness, between
from .topology import Change, Pair, Topology, apply, differences


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
    """One running WAN. `topology`: the original one; `now`: with the live changes."""

    name: str
    backend: str
    topology: Topology
    now: Topology
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
            "now": files.to_json(self.now),
            "namespaces": self.namespaces,
            "process": self.process,
            "notes": self.notes,
        }
        write_whole(self.folder / "state.json", json.dumps(data).encode())

    def change(self, change: Change) -> list[str]:
        """Set, cut or restore live; returns the names of the hosts and the links that are different now."""
        with lock(self.folder / ".lock"):
            before = load(self.name).now  # another process may have changed it since
            self.now = apply(self.topology, before, change)
            hosts, pairs = differences(before, self.now)
            if hosts or pairs:
                self._set(hosts, pairs)
                self.save()
        names = [host.name for host in self.topology.hosts]
        return [names[i] for i in hosts] + [f"{names[i]}->{names[j]}" for i, j in pairs]

    def _set(self, hosts: Sequence[int], pairs: Sequence[Pair]) -> None:
        """Apply the values of `now` for these hosts and pairs in the backend."""
        if self.backend == "relay":
            rates = [[i, self.now.hosts[i].uplink, self.now.hosts[i].downlink] for i in hosts]
            self.ask({"do": "set", "hosts": rates, "links": []})
            changes = [[i, j, dataclasses.asdict(self.now.links[i, j])] for i, j in pairs]
            for first in range(0, len(changes), 500):  # the size of a datagram is limited
                self.ask({"do": "set", "hosts": [], "links": changes[first : first + 500]})
            return
        for i in range(len(self.now.hosts)):
            system.tc(netem.changed_egress(self.now, i, hosts, pairs), self.namespace(i))
        system.tc([netem.downlink(self.now, i, f"port{i}") for i in hosts], self.namespaces[-1])

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

    def require_alive(self) -> None:
        """WanError where the relay or a namespace is gone."""
        if not self.alive():
            gone = [n for n in self.namespaces if not os.path.exists(f"{NETNS}/{n}")]
            what = f"namespace {gone[0]} is gone" if gone else "its relay is gone"
            again = f"farflung wan down {self.name} && farflung wan up {self.name}"
            raise WanError(f"the WAN {self.name} is broken: {what}", again, 4)


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


def state(name: str) -> dict[str, Any]:
    """What state.json of a lab says. WanError where it is not up."""
    try:
        data: dict[str, Any] = json.loads((state_root() / name / "state.json").read_text())
    except OSError:
        up = ", ".join(names()) or "none"
        raise WanError(f"the WAN {name} is not up", f"farflung wan up {name} (up now: {up})") from None
    return data


def load(name: str) -> Lab:
    """A lab by its name."""
    data = state(name)
    if set(data) != {field.name for field in dataclasses.fields(Lab)}:
        raise WanError(f"another version of farflung built the WAN {name}", f"farflung wan down {name}")
    process = {role: (int(pid), str(when)) for role, (pid, when) in data["process"].items()}
    return Lab(
        **{
            **data,
            "topology": files.from_json(data["topology"]),
            "now": files.from_json(data["now"]),
            "process": process,
        }
    )
