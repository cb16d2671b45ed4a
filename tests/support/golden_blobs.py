"""The bytes of every codec, kept in a file for each: the wire format can't change by accident.

``python tests/support/golden_blobs.py [CODEC ...]`` writes files anew: for a new codec, or after a format's version was
raised on purpose.
"""

import json
import sys
import zlib
from pathlib import Path

import torch

from farflung import compress

FOLDER = Path(__file__).parents[1] / "compress" / "data" / "golden"
VARIANTS = [
    "cocktail:values=log",
    "cocktail:mask=bitmap,random=0.5,bits=3",
    "int4:rounding=nearest,group=32",
    "eden:bits=1.5",
]
VARIANTS += [
    "eden:bits=0.5,rotations=2",
    "sign:scale=two",
    "mxfp6:format=e3m2",
    "quicfl:shared=false",
    "thc:bits=8,granularity=0",
]
VARIANTS += ["turboquant:kind=prod", "avq:rotate=true,bits=2", "chunked_topk:bits=4", "topk:ratio=0.2", "int8:scale=32"]
SPECS = [*compress.names(), *VARIANTS]
# Their encoders use matrix products or logarithms, whose last bit may differ between machines; their decoders do not.
DECODED_ONLY = (
    "powersgd",
    "demo",
    "quicfl",
    "cocktail:values=log",
    "turboquant",
    "avq",
    "docofl",
    "rotq",
    "dynamiq",
    "intsgd",
)


def vector() -> torch.Tensor:
    """Exact in fp32, of several magnitudes, with no mathematics in its making."""
    i = torch.arange(300)
    return ((i * 7919) % 1009 - 504).float() / 64.0 * torch.tensor([1.0, 0.125, 8.0])[i % 3]


def made(spec: str) -> dict[str, str]:
    blob = compress.make(spec).encode(vector().view(15, 20), seed=0x0123456789ABCDEF, step=7, rank=0)
    return {"blob": blob.hex(), "decoded": digest(blob)}


def digest(blob: bytes) -> str:
    return f"{zlib.crc32(compress.decode(blob).contiguous().numpy().tobytes()):08x}"


def check(spec: str, file: Path) -> None:
    """That a spec's bytes are those that a golden file has, and decode to what they did."""
    kept = json.loads(file.read_text())[spec]
    blob = bytes.fromhex(kept["blob"])
    assert digest(blob) == kept["decoded"]
    if not spec.startswith(DECODED_ONLY):
        assert made(spec)["blob"] == kept["blob"]


def write(codec: str, file: Path) -> None:
    specs = [spec for spec in [*compress.names(), *VARIANTS] if spec.partition(":")[0] == codec]
    file.write_text(json.dumps({spec: made(spec) for spec in specs}, indent=0) + "\n")


if __name__ == "__main__":
    for codec in sys.argv[1:] or compress.names():
        write(codec, FOLDER / f"{codec}.json")
