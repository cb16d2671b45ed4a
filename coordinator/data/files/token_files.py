"""Recognises files of tokens (nanoGPT's, llm.c's, Megatron's, datatrove's, numpy's) by their headers."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import fsspec
import numpy as np
import numpy.typing as npt

from ....proto.errors import JobError
from .sources import opened, sources_of

_ENOUGH = 1000  # tokens from which the type of a file's tokens is checked


@dataclass(frozen=True)
class TokenPart:
    """A file of tokens: ``tokens`` of a numpy ``dtype`` from byte ``start`` to its end, ``size`` bytes in all."""

    name: str
    dtype: str
    start: int
    tokens: int
    size: int


def token_parts(patterns: Iterable[str], kind: str = "<u2") -> Iterator[TokenPart]:
    """The files of ``data.tokens``; only headers are read. ``kind``: the numpy dtype of tokens where a file has no
    header. JobError: a size that is no whole number of tokens, an array of another type, no file."""
    for name, *_ in sources_of("tokens", patterns):
        with opened(name) as file:
            dtype, count = _header(name, file, kind)
            start = file.tell()
            size = file.seek(0, io.SEEK_END)
        if count is not None and count * dtype.itemsize != size - start:
            there = (size - start) // dtype.itemsize
            raise JobError(f"data: the header of {name} says {count} tokens, and {there} are there", "copy it again")
        if (size - start) % dtype.itemsize:
            raise JobError(f"data: {name} ends in half a token", f"a token has {dtype.itemsize} bytes there")
        yield TokenPart(name, dtype.str, start, (size - start) // dtype.itemsize, size)


def _header(name: str, file: BinaryIO, without: str) -> tuple[np.dtype[Any], int | None]:
    """(dtype of a file's tokens, their number by the header or None). The file's position is then at the first
    token."""
    start = file.read(_LLM_C[0])
    if name.endswith(".npy") or start.startswith(np.lib.format.MAGIC_PREFIX):
        file.seek(0)
        return _dtype(name, file), None
    kind = _LLM_C[1].get((int.from_bytes(start[:4], "little"), int.from_bytes(start[4:8], "little")))
    if kind and len(start) == _LLM_C[0]:
        return np.dtype(kind), int.from_bytes(start[8:12], "little")
    file.seek(0)
    if name.endswith(".bin") and (found := _megatron(name.removesuffix(".bin") + ".idx")):
        return found
    return np.dtype(_datatrove(name) or without), None


def _megatron(index: str) -> tuple[np.dtype[Any], int] | None:
    """(dtype, number of tokens) from Megatron's index beside a file; None without an index."""
    if not _is_there(index):
        return None
    with opened(index) as file:
        start = file.read(34)
        magic, version, code = start[:9], int.from_bytes(start[9:17], "little"), start[17] if len(start) == 34 else 0
        rows = int.from_bytes(start[18:26], "little")
        if magic != b"MMIDIDX\0\0" or version != 1 or code not in _MEGATRON:
            hint = "convert it with Megatron's preprocess_data, or write the tokens with numpy.save as *.npy"
            raise JobError(f"data: {index} is no index of Megatron that is known here", hint)
        if not rows:
            return np.dtype(_MEGATRON[code]), 0
        file.seek(34 + 4 * (rows - 1))
        last = int.from_bytes(file.read(4), "little")
        file.seek(34 + 4 * rows + 8 * (rows - 1))
        pointer = int.from_bytes(file.read(8), "little")
    kind = np.dtype(_MEGATRON[code])
    return kind, pointer // kind.itemsize + last


_MEGATRON = {1: "<u1", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Megatron's dtype codes."""


def _datatrove(name: str) -> str | None:
    """The dtype of a file's tokens from the metadata line that datatrove (and so nanotron) writes beside it; None
    without one."""
    if not name.endswith(".ds") or not _is_there(f"{name}.metadata"):
        return None
    with opened(f"{name}.metadata") as file:
        size = file.readline(1000).decode(errors="replace").strip().rpartition("|")[2]
    if size not in ("2", "4"):
        raise JobError(f"data: {name}.metadata does not say that a token has 2 or 4 bytes", "its first line: NAME|2")
    return f"<u{size}"


def _is_there(name: str) -> bool:
    system, path = fsspec.url_to_fs(name)
    return bool(system.exists(path))


_LLM_C = (1024, {(20240520, 1): "<u2", (20240801, 7): "<u4"})
"""llm.c's format, which others use too: a header of 256 int32 (magic, version, tokens), then the tokens."""


def check_tokens(name: str, tokens: npt.NDArray[Any], vocabulary: int) -> None:
    """JobError for a token that the tokenizer does not have, and for uint32 where uint16 is read: then every second
    token is the upper half of a uint32 token, which is 0 for every vocabulary that fits uint16."""
    if tokens.dtype.kind == "i" and int(tokens.min(initial=0)) < 0:
        raise JobError(f"data: {name} has the token {int(tokens.min())}: below 0", "its index may be of another file")
    if int(tokens.max(initial=0)) >= vocabulary:
        raise JobError(
            f"data: {name} has the token {int(tokens.max())}, but data.tokenizer has only {vocabulary}",
            "set data.tokenizer to the folder that the tokens were made with; if they are not little-endian uint16, as "
            "a .bin is, or uint32 with a tokenizer of more than 65,536, say so in data.token_type",
        )
    if tokens.dtype.itemsize == 2 and len(tokens) >= _ENOUGH:
        lower, upper = sorted((int(tokens[::2].max()), int(tokens[1::2].max())), reverse=True)
        if upper <= (vocabulary - 1) >> 16 < lower:
            raise JobError(
                f"data: {name} has nothing above {upper} in every second token: these seem to be uint32, not uint16",
                'write token_type = "uint32" under [data]',
            )


def _dtype(name: str, file: BinaryIO) -> np.dtype[Any]:
    """Reads the header of a .npy file; its values are next. Nothing is ever unpickled: such arrays are refused."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    except ValueError as error:
        raise JobError(f"data: {name}: {error}") from None
    if len(shape) != 1 or dtype.kind != "u":
        raise JobError(f"data: {name} holds {dtype} {shape}", "data.tokens wants one row of uint16 or uint32")
    return dtype
