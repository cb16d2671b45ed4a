"""Blobs of a stranger: mutations of each codec's, their checksum made right, held to 1 s of CPU and 64 MiB each.

    python -m benchmarks.fuzz_blobs [--mutations 5000] [--seed N] [CODEC ...]       default: every codec

A mutation changes, takes out or puts in bytes, or joins parts of two blobs. It is decoded, with the limit that a reader
has who knows nothing, and added to a vector of the right length: that is done, or is a CodecError. Ends with status 1,
and the blob in hex, at the first that is neither, or takes too much.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import sys
import time
import tracemalloc
import zlib
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from farflung import compress
from farflung.compress.blobs.wire import varint
from farflung.compress.cpu import dispatch as fast

SECONDS, BYTES = 1.0, 64 << 20
SIZES = (1, 200, 5000)
LONG = 1 << 18
"""Elements, for which the compiled loops are taken: a mutation may claim so many."""


class Largest(TorchDispatchMode):
    """The bytes of the largest tensor that an operation makes."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(one, torch.Tensor):
                self.bytes = max(self.bytes, one.untyped_storage().nbytes())
        return out


@dataclass
class Found:
    """What the mutations of one codec came to; seconds and bytes of the worst."""

    codec: str
    mutations: int = 0
    refused: int = 0
    seconds: float = 0.0
    bytes: int = 0
    failure: str = ""


def sealed(blob: bytes | bytearray) -> bytes:
    """The blob with its checksum made right."""
    head, rest = bytes(blob[:4]), bytes(blob[8:])
    return head + struct.pack("<I", zlib.crc32(rest, zlib.crc32(head))) + rest


def mutated(blob: bytes, other: bytes, chance: random.Random) -> bytes:
    out = bytearray(blob)
    for _ in range(chance.randint(1, 4)):
        header = chance.random() < 0.5  # half of them in the first bytes, where sizes and parameters are
        at = min(len(out), chance.randint(8, min(len(out), 48) if header else len(out)))
        kind = chance.choice(("flip", "byte", "cut", "grow", "join", "varint"))
        if kind == "flip" and at < len(out):
            out[at] ^= 1 << chance.randrange(8)
        elif kind == "byte" and at < len(out):
            out[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        elif kind == "cut":
            del out[at : at + chance.choice((1, 4, 1 << 20))]
        elif kind == "grow":
            out[at:at] = chance.randbytes(chance.randint(1, 8))
        elif kind == "varint":
            out[at : at + 1] = varint(1 << chance.randrange(64))
        elif kind == "join":
            out[at:] = other[at:]
    return sealed(out)


def tried(name: str, mutations: int, seed: int) -> Found:
    """So many mutations of a codec's blobs."""
    chance, found = random.Random(f"{name} {seed}"), Found(name)
    x = torch.linspace(-1, 2, max(SIZES)).sin()
    codec = compress.make(name)
    blobs = [codec.encode(x[:size], seed=1, step=2) for size in SIZES]
    blobs.append(codec.encode(x[:200].view(10, 20), seed=3, step=1 << 31))
    fast.available()
    with Largest():
        long = torch.linspace(-1, 2, LONG).sin()
        for blob in [*blobs, codec.encode(long), codec.encode(torch.ones(LONG))]:
            compress.decode(blob)  # what is imported, compiled and kept at the first use is not a mutation's
    while found.mutations < mutations and not found.failure:
        blob = mutated(chance.choice(blobs), chance.choice(blobs), chance)
        found.mutations += 1
        tracemalloc.start()
        start = time.thread_time()
        with Largest() as largest:
            for what in (lambda b: compress.decode(b), lambda b: compress.add(b, torch.zeros(200), 0.5)):
                try:
                    what(blob)
                except compress.CodecError:
                    found.refused += 1
                except Exception as error:
                    found.failure = f"{type(error).__name__}: {error}: {blob.hex()}"
        took, taken = time.thread_time() - start, max(largest.bytes, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        found.seconds, found.bytes = max(found.seconds, took), max(found.bytes, taken)
        if took > SECONDS or taken > BYTES:
            found.failure = found.failure or f"{took:.2f} s, {taken >> 20} MiB: {blob.hex()}"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("codecs", nargs="*")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    failed = False
    print("| codec | mutations | refused, of two tries each | worst s | worst MiB |\n| --- | --- | --- | --- | --- |")
    for name in wanted.codecs or compress.names():
        one = tried(name, wanted.mutations, wanted.seed)
        print(
            f"| `{name}` | {one.mutations} | {one.refused} | {one.seconds:.3f} | {one.bytes / (1 << 20):.1f} |",
            flush=True,
        )
        if one.failure:
            failed = True
            print(json.dumps({"codec": name, "failure": one.failure}), file=sys.stderr)
    sys.exit(failed)


if __name__ == "__main__":
    main()
