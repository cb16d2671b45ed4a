"""How fast two real endpoints on this machine are, trainer to trainer: `python tests/node_io/throughput.py`.

Prints GB/s of 64 MB messages, the round trip of an empty one, and the bytes that a small message adds to its payload;
without TLS and with it. Both trainers' ends are in this process, both I/O processes are real.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from numbered import numbered
from wires import Nodes, receive

from farflung.coordinator.trust.authority import load_authority
from farflung.node.device import identity
from farflung.proto.data_pb2 import Contribution, Header, Kind

SIZE = 64_000_000
MESSAGES = 12


def certificates(authority):
    def of(name):
        key = identity.make_key()
        certificate, _ = authority.sign(identity.certificate_request(key, name), name)
        return {"authority": authority.nodes, "certificate": certificate, "key": key}

    return of


def measure(label, trust):
    nodes = Nodes(True, trust)
    a, b = nodes.start("a"), nodes.start("b")
    nodes.enter(1)
    payload = np.random.default_rng(0).integers(0, 256, SIZE, dtype=np.uint8)
    for _ in range(2):  # touches the arenas
        a.send("b", numbered(Kind.STATE), payload, 2)
        receive(b, timeout=60)
        a.poll()
    begin = time.perf_counter()
    a.send("b", numbered(Kind.STATE), payload, 2)
    for _ in range(MESSAGES - 1):  # one on its way while the next is copied
        a.send("b", numbered(Kind.STATE), payload, 2)
        receive(b, timeout=60)
        a.poll()
    receive(b, timeout=60)
    rate = MESSAGES * SIZE / (time.perf_counter() - begin) / 1e9
    trips = []
    for _ in range(200):
        begin = time.perf_counter()
        a.send("b", numbered(Kind.READY), b"", 0)
        receive(b)
        b.send("a", numbered(Kind.READY), b"", 0)
        receive(a)
        trips.append(time.perf_counter() - begin)
    header = Header(
        kind=Kind.CONTRIBUTION,
        contribution=Contribution(section="stage-0", round=300, part=1, chain=2**63 + 7, sizes=[9]),
    )
    added = []
    for _ in range(3):
        before = a.statistics()["updates"] + b.statistics()["updates"]
        a.send("b", header, bytes(10_000))
        receive(b)
        time.sleep(0.2)
        added.append(a.statistics()["updates"] + b.statistics()["updates"] - before - 10_000)
    (link,) = a.measure(nodes.members("b")).links
    nodes.close()
    print(
        f"{label:9} {rate:.2f} GB/s trainer to trainer · I/O to I/O {link.bandwidth_bps / 8e9:.2f} GB/s · "
        f"round trip {np.median(trips) * 1e3:.2f} ms (p95 {np.quantile(trips, 0.95) * 1e3:.2f}) · "
        f"a 10 kB contribution adds {added[-1]} bytes (the first {added[0]})"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        measure("plaintext", None)
        measure("TLS", certificates(load_authority(Path(folder))))
