"""What the processes of an island say to each other: orders and answers, one JSON object each, on a socket pair.

Tensors travel beside them by torch.distributed, and files as descriptors.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from ....compress import CodecError
from . import carry

Words = dict[str, Any]

ERRORS: Mapping[str, type[Exception]] = {"memory": torch.OutOfMemoryError, "codec": CodecError, "": RuntimeError}
"""Which exception the first process raises for each kind of an answer's error."""


def kind_of(problem: Exception) -> str:
    """The kind of an error, for the answer."""
    return next(kind for kind, one in ERRORS.items() if not kind or isinstance(problem, one))


def described(tensor: Tensor) -> list[Any]:
    """[shape, dtype's name] of a tensor, for ``receive``."""
    return [list(tensor.shape), str(tensor.dtype).removeprefix("torch.")]


def receive(what: Sequence[Any], device: torch.device, source: int = 0) -> Tensor:
    """The tensor that rank ``source`` sends. ``what``: its shape and dtype, from ``described``."""
    tensor = torch.empty(what[0], dtype=getattr(torch, what[1]), device=device)
    carry.receive(tensor, source)
    return tensor


def say(connection: Connection, words: Words, files: Sequence[int] = ()) -> None:
    """Send one order or answer, with descriptors of ``files``."""
    connection.send_bytes(json.dumps({**words, "files": len(files)}).encode())
    if files:
        with socket.socket(fileno=os.dup(connection.fileno())) as plain:
            socket.send_fds(plain, [b"f"], files)


def hear(connection: Connection) -> Words:
    """Receive the next order or answer; its ``files`` are descriptors that belong to the caller. EOFError or OSError
    when the other side has ended."""
    words: Words = json.loads(connection.recv_bytes())
    if count := words["files"]:
        with socket.socket(fileno=os.dup(connection.fileno())) as plain:
            _, words["files"], _, _ = socket.recv_fds(plain, 1, count)
    return words
