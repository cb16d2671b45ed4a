"""The bytes of every codec, kept: the wire format can't change by accident.

``python tests/compress/test_golden.py`` writes the file anew, after a format's version was raised on purpose.
"""

import json
import zlib
from pathlib import Path

import pytest
import torch

from farflung import compress

FILE = Path(__file__).parent / "data" / "golden.json"
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


@pytest.mark.parametrize("spec", SPECS)
def test_bytes_are_what_they_were(spec: str) -> None:
    kept = json.loads(FILE.read_text())[spec]
    blob = bytes.fromhex(kept["blob"])
    assert digest(blob) == kept["decoded"]
    if not spec.startswith(DECODED_ONLY):
        assert made(spec)["blob"] == kept["blob"]


if __name__ == "__main__":
    FILE.write_text(json.dumps({spec: made(spec) for spec in SPECS}, indent=0) + "\n")
