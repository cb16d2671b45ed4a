"""What this machine can do: the device's matmul rate, its free memory, a description for people.

The I/O process measures links (node/io/link_probe.py), when the coordinator orders it or by `ProcessWire.measure`.
torch is imported when a device is measured, not before.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from typing import TYPE_CHECKING

from ...proto.control_pb2 import Device
from ...proto.errors import FarflungError
from .memory import available_memory

if TYPE_CHECKING:
    import torch

MATMUL = 1024
"""Side of the square matrices."""
SECONDS = 0.4


def measure_device(wish: str = "auto", precision: str = "fp32") -> Device:
    """Finds and measures a device. `wish`: auto, cpu, cuda, cuda:N or mps; `precision`: that of the job.

    FarflungError when there is no such device here.
    """
    device = find_device(wish)
    return Device(
        kind=device.type,
        description=describe(device),
        tflops=matmul_rate(device, precision),
        memory_bytes=free_memory(device),
        cores=usable_cores(),
    )


def find_device(wish: str) -> torch.device:
    """The torch device that `wish` names; auto prefers cuda, then mps, then cpu."""
    import torch

    mps = torch.backends.mps.is_available()
    if wish == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "mps" if mps else "cpu")
    kind, _, number = wish.partition(":")
    if kind not in ("cpu", "cuda", "mps") or (number and (kind != "cuda" or not number.isdigit())):
        raise FarflungError(f"{wish!r} is no device", "use --device auto, cpu, cuda:N or mps")
    if kind == "mps" and not mps:
        why = "torch sees no Metal here" if torch.backends.mps.is_built() else "this torch was built without Metal"
        raise FarflungError(f"this machine has no mps device: {why}", "use --device auto or cpu")
    if kind == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(number or 0) >= count:
            have = f"{count} CUDA device{'s' if count != 1 else ''}"
            raise FarflungError(f"there is no {wish} here: torch sees {have}", "use --device auto or cpu")
    return torch.device(kind if kind != "cuda" else f"cuda:{number or 0}")


def matmul_rate(device: torch.device, precision: str) -> float:
    """TFLOP/s of square matrix products of side MATMUL, the best of several in about SECONDS."""
    import torch

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    left, right = (torch.randn(MATMUL, MATMUL, device=device).to(dtype) for _ in range(2))
    _timed(left, right, device)  # loads kernels, wakes clocks
    best, end = float("inf"), time.perf_counter() + SECONDS
    while True:
        best = min(best, _timed(left, right, device))
        if time.perf_counter() > end:
            return 2.0 * MATMUL**3 / best / 1e12


def _timed(left: torch.Tensor, right: torch.Tensor, device: torch.device) -> float:
    import torch

    repeats = 1 if device.type == "cpu" else 20
    begin = time.perf_counter()
    for _ in range(repeats):
        product = left @ right
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    else:
        product[0, 0].item()  # waits for mps; a cpu has finished already
    return (time.perf_counter() - begin) / repeats


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory(device: torch.device) -> int:
    """Bytes that training may use: free device memory, or the machine's available memory within its cgroup's limit."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return min(available_memory(), int(torch.mps.recommended_max_memory()))
    return available_memory()


def beside_cuda(device: torch.device, mode: str) -> str:
    """A remark for people about a device that is neither a CPU nor NVIDIA's; empty for those.

    FarflungError where the device cannot take part in a run with ``updates.mode`` = ``mode``.
    """
    import torch

    if device.type == "mps" and mode == "gradient":
        raise FarflungError(
            'mode "gradient" needs the same bits of every optimiser step, and Metal divides in a way of its own',
            'join with --device cpu, or train with updates.mode = "delta"',
        )
    if device.type == "mps":
        return "mps: the model computes on the GPU, codecs on the CPU beside it"
    if device.type == "cuda" and torch.version.hip:
        return f"ROCm {torch.version.hip}: codecs are plain torch operations here, for their kernels are CUDA's"
    return ""


def describe(device: torch.device) -> str:
    """For people: "NVIDIA A100-SXM4-80GB 80 GB" or "AMD EPYC 7763, 2 cores"."""
    import torch

    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        rocm = f", ROCm {torch.version.hip}" if torch.version.hip else ""
        return f"{facts.name} {facts.total_memory / 2**30:.0f} GB{rocm}"
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, StopIteration), open("/proc/cpuinfo") as lines:
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return f"{name}, {os.cpu_count()} cores" if device.type == "cpu" else f"{name} (mps)"
