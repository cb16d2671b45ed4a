"""Safetensors files without torch: what a keeper sends of its stage."""

import json
import math
import struct

BYTES = {"F32": 4, "BF16": 2}


def tensor_file(tensors: dict[str, tuple[str, int | tuple[int, ...]]], fill: int = 0) -> bytes:
    """A file of tensors, name -> (dtype, elements or shape), every byte of them ``fill``."""
    header, at = {}, 0
    for name, (dtype, size) in tensors.items():
        shape = size if isinstance(size, tuple) else (size,)
        count = math.prod(shape)
        header[name] = {"dtype": dtype, "shape": [*shape], "data_offsets": [at, at + count * BYTES[dtype]]}
        at += count * BYTES[dtype]
    words = json.dumps(header).encode()
    return struct.pack("<Q", len(words)) + words + bytes([fill % 256]) * at


def stage_file(layers: dict[str, int], moments: tuple[str, ...] = ("m", "v"), fill: int = 0) -> bytes:
    """The file of a stage: the weights of its layers, name -> elements, and the optimiser's moments of each."""
    prefixes = ("", *(f"optimizer.{name}." for name in moments))
    return tensor_file({prefix + name: ("F32", count) for prefix in prefixes for name, count in layers.items()}, fill)
