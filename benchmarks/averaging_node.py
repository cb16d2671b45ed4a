"""One node of benchmarks/averaging.py: averages a vector with the others whenever it is told to, and says how long.

    python benchmarks/averaging_node.py farflung|hivemind CODEC RANK NODES NUMEL FOLDER

Needs farflung for the one system and hivemind for the other, never both. With NumPy 2.4 hivemind 1.1.12 can't read its
own int8 (``int`` of an array with one element), and keeps its values: give it an older one. A line on stdin prepares a
round, the next one starts it; it answers `ready` and the CLOCK_MONOTONIC time at which its average was there.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import Any

import torch

PATIENCE = 120.0


def main() -> None:
    system, codec, *numbers, folder = sys.argv[1:]
    rank, nodes, numel = map(int, numbers)
    torch.set_num_threads(1)
    values = torch.randn(numel, generator=torch.Generator().manual_seed(rank))
    expected = sum(torch.randn(numel, generator=torch.Generator().manual_seed(i))[:1000] for i in range(nodes)) / nodes
    node: Any = (Ours if system == "farflung" else Theirs)(codec, rank, nodes, values, Path(folder))
    error = None
    print("ready", flush=True)
    for _ in sys.stdin:
        node.prepare()
        print("ready", flush=True)
        sys.stdin.readline()
        node.average()
        print(time.monotonic(), flush=True)
        if error is None:
            # Their int8 clips at three standard deviations, so single values are far off; what fails leaves about 0.9.
            error = float((node.result()[:1000] - expected).square().mean().sqrt())
            assert error < 0.1, f"{system} {codec} is off by {error}"
    node.close()


class Ours:
    """A round of the publishers' pattern in delta mode, over real wires with TLS."""

    def __init__(self, codec: str, rank: int, nodes: int, values: torch.Tensor, folder: Path) -> None:
        from farflung.node.ipc.config import WireConfig
        from farflung.node.rounds.arithmetic.exchange import Exchange
        from farflung.node.rounds.protocol.machine import Rounds
        from farflung.node.rounds.protocol.messages import Part, RoundPlan
        from farflung.node.rounds.protocol.outlet import Outlet
        from farflung.node.rounds.round_link import RoundLink
        from farflung.node.state.sections.moments import Kept
        from farflung.node.state.sections.section import Layout, Section
        from farflung.node.wire.client import ProcessWire
        from farflung.proto.control_pb2 import Member

        names = [f"n{i}" for i in range(nodes)]
        keys = {key: (folder / f"n{rank}.{key}").read_bytes() for key in ("authority", "certificate", "key")}
        config = WireConfig("averaging", f"n{rank}", f"n{rank}", listen="127.0.0.1:0", **keys)  # type: ignore[arg-type]
        self.wire = ProcessWire.start(config)
        (folder / f"{rank}.port.new").write_text(str(self.wire.port))
        (folder / f"{rank}.port.new").rename(folder / f"{rank}.port")
        ports = [_when_there(folder / f"{i}.port") for i in range(nodes)]
        self.wire.enter(
            1, [Member(name=n, session=n, address=f"127.0.0.1:{p}") for n, p in zip(names, ports, strict=True)]
        )
        numel = len(values)
        edges = itertools.pairwise([numel * i // nodes for i in range(nodes + 1)])
        parts = tuple(Part(i, names[i], start, stop) for i, (start, stop) in enumerate(edges))
        plan = RoundPlan("stage-0", tuple(names), (1.0,) * nodes, parts, "publishers", False)
        self.values = values
        self.section = Section(Layout.of("stage-0", {"a": (numel,)}), False, Kept(), torch.device("cpu"))
        self.section.restart_chain(1, 0)
        exchange = Exchange(self.section, plan, names[rank], codec, seed=7)
        exchange.place_in(self.wire.place)
        self.link = RoundLink(
            exchange,
            Rounds(plan, names[rank], 0, self.section.chain),
            Outlet(self._send, self._refuse, self._refuse),
        )

    def _send(self, to: str, header: Any, payload: Any) -> None:
        self.wire.send(to, header, payload, 1)

    def _refuse(self, node: str, why: str, points: int = 1) -> None:
        raise RuntimeError(f"{node}: {why}")

    def prepare(self) -> None:
        self.section.g.zero_()
        self.section.x.copy_(self.values)
        self.wire.poll()

    def average(self) -> None:
        from farflung.node.wire.events import Received
        from farflung.proto.messages import bodies

        self.link.begin()
        until = time.monotonic() + PATIENCE
        while not self.link.complete:
            for event in self.wire.poll(0.05):
                if isinstance(event, Received):
                    self.link.handle(event.sender, bodies.of_round(event.header), event.payload)
            self.link.tick()
            assert time.monotonic() < until, "the round did not end"
        results = self.link.results
        self.link.exchange.apply_delta(self.link.updates(), results)
        self.link.finish(results, 1 << 16)

    def result(self) -> torch.Tensor:
        return self.section.g

    def close(self) -> None:
        self.wire.close("", 5.0)


class Theirs:
    """hivemind.DecentralizedAverager: the group is found before the clock starts, the all-reduce is what is timed."""

    def __init__(self, codec: str, rank: int, nodes: int, values: torch.Tensor, folder: Path) -> None:
        import hivemind

        meet = folder / "meet"
        first = [] if rank == 0 else _when_there(meet).split()
        self.dht = hivemind.DHT(host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=first, start=True)
        if rank == 0:
            (folder / "meet.new").write_text("\n".join(map(str, self.dht.get_visible_maddrs())))
            (folder / "meet.new").rename(meet)
        compression = {
            "none": hivemind.compression.NoCompression,
            "fp16": hivemind.compression.Float16Compression,
            "int8": hivemind.compression.Uniform8BitQuantization,
        }[codec]()
        self.values = values
        self.averager = hivemind.averaging.DecentralizedAverager(
            [values.clone()],
            self.dht,
            start=True,
            prefix="averaging",
            target_group_size=nodes,
            min_group_size=nodes,
            min_matchmaking_time=2.0,
            request_timeout=1.0,
            compression=compression,
            allow_state_sharing=False,
        )
        self.control: Any = None

    def prepare(self) -> None:
        with self.averager.get_tensors() as tensors:
            tensors[0].copy_(self.values)
        self.control = self.averager.step(
            scheduled_time=self._soon(), wait=False, require_trigger=True, timeout=PATIENCE, allow_retries=True
        )
        until = time.monotonic() + PATIENCE
        while self.control.stage.name != "AWAITING_TRIGGER":
            assert time.monotonic() < until, f"no group: {self.control.stage.name}"
            time.sleep(0.02)

    def _soon(self) -> float:
        from hivemind.utils import get_dht_time

        return float(get_dht_time() + 2.0)

    def average(self) -> None:
        self.control.allow_allreduce()
        assert self.control.result(timeout=PATIENCE) is not None, "the averaging failed"

    def result(self) -> torch.Tensor:
        with self.averager.get_tensors() as tensors:
            return tensors[0].clone()

    def close(self) -> None:
        self.averager.shutdown()
        self.dht.shutdown()


def _when_there(path: Path) -> str:
    until = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < until, f"{path} did not come"
        time.sleep(0.05)
    return path.read_text()


if __name__ == "__main__":
    main()
