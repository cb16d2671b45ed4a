"""Which devices an island has, and how its processes find each other."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from ....proto.errors import FarflungError
from ...ipc.arena import make_file
from .meshes import Meshes

BACKEND = "FARFLUNG_ISLAND_BACKEND"
"""The environment variable that names the backend of torch.distributed; without it gloo for CPUs, NCCL for CUDA."""


def devices_of(first: torch.device, count: int) -> list[torch.device]:
    """The devices of an island: the CPU ``count`` times, or ``count`` CUDA devices from ``first`` on; with gloo, which
    NCCL would refuse, one CUDA device ``count`` times."""
    if first.type == "cpu" or os.environ.get(BACKEND) == "gloo":
        return [first] * count
    if first.type != "cuda":
        raise FarflungError(f"an island of {first.type} devices is not possible", "use --device cuda:N or cpu")
    there, last = torch.cuda.device_count(), first.index + count - 1
    if last >= there:
        raise FarflungError(
            f"an island of {count} from {first} on needs cuda:{last}, and torch sees {there} CUDA devices here",
            f"use --island {there - first.index}" if there > first.index + 1 else "leave --island out",
        )
    return [torch.device("cuda", first.index + number) for number in range(count)]


def shared_card(devices: Sequence[torch.device]) -> str:
    """What the person at the node is told if all of an island's processes have one card; else empty."""
    if devices[0].type == "cpu" or len(set(devices)) > 1:
        return ""
    why = f"all {len(devices)} processes of this node's island compute on {devices[0]}, because {BACKEND} is gloo"
    return f"{why}: unset it, and each has a card of its own"


def form_group(device: torch.device, rank: int, ranks: int, place: str) -> Meshes:
    """Form the process group of an island. Waits for all ranks. It is not reachable from other machines."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = os.environ.get(BACKEND) or ("nccl" if device.type == "cuda" else "gloo")
    dist.init_process_group(backend, f"file://{place}", rank=rank, world_size=ranks)
    return Meshes(device.type)


def meeting_place() -> tuple[str, int]:
    """(path, descriptor) of an empty file by which the ranks of an island find each other; they inherit the descriptor.
    On Linux the file has no name, so nothing is left of it, however the processes end. The descriptor is never closed:
    torch's store opens the path once more when it is collected, at any time after the end of the group, and would read
    (or wait for) what has the descriptor's number by then."""
    if sys.platform == "linux":
        made = make_file(0)
        return f"/proc/self/fd/{made}", made
    made, path = tempfile.mkstemp(prefix="farflung-island-")
    return path, made


def remove(place: str) -> None:
    """Remove a meeting place that has a name."""
    if not place.startswith("/proc/"):
        Path(place).unlink(missing_ok=True)
