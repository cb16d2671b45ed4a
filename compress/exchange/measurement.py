"""Bits, error and speed of a codec, measured the same way for all."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..codec import check_tensor, decode, make
from ..errors import CodecError
from ..primitives.vectors import vector
from ..specs.spec import Spec, parse
from .simulation import simulate


def nmse(spec: str | Spec, x: torch.Tensor, trials: int = 10, seed: int = 1) -> tuple[float, float, float]:
    """(mean over codec seeds of |decoded - x|² / |x|², its standard deviation, bits per element with the header)."""
    codec = make(spec)
    energy = float(x.double().square().sum())
    errors, bits = [], 0.0
    for trial in range(trials):
        blob = codec.encode(x, seed=seed + trial * 7919, step=trial)
        error = (decode(blob, x.device).to(torch.float64) - x.to(torch.float64)).square().sum()
        errors.append(float(error) / energy if energy else float(error))
        bits += len(blob) * 8 / max(1, x.numel()) / trials
    spread = torch.tensor(errors).std().item() if trials > 1 else 0.0
    return sum(errors) / trials, spread, bits


def mean_error(spec: str | Spec, tensors: list[torch.Tensor], trials: int = 1, seed: int = 1, **options: Any) -> float:
    """|result of the exchange - true mean|² / |true mean|², averaged over seeds."""
    mean = torch.stack([t.double() for t in tensors]).mean(0)
    energy = float(mean.square().sum())
    total = 0.0
    for trial in range(trials):
        result = simulate(spec, tensors, seed=seed + trial * 104729, step=trial, **options)
        total += float((result.mean.double() - mean).square().sum()) / energy
    return total / trials


def best_seconds(what: Callable[[], object], repeats: int = 3) -> float:
    """The least of a few timings."""
    best = float("inf")
    for _ in range(repeats):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        what()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def load(path: str, prefix: str = "") -> torch.Tensor:
    """The tensors of a safetensors file whose names begin with ``prefix``, one flat fp32 vector in the names' order."""
    from safetensors.torch import load_file

    if not Path(path).is_file():
        raise CodecError(f"there is no file {path!r}")
    try:
        tensors = load_file(path)
    except Exception as error:
        raise CodecError(f"{path!r} can't be read as safetensors: {error}") from error
    parts = [
        tensors[name].reshape(-1).to(torch.float32)
        for name in sorted(tensors)
        if tensors[name].is_floating_point() and name.startswith(prefix)
    ]
    if not parts:
        raise CodecError(f"{path!r} has no float tensor{f' called {prefix}...' if prefix else ''}")
    if not sum(map(len, parts)):
        raise CodecError(f"{path!r} has float tensors of no values alone")
    return torch.cat(parts)


def measure(
    spec: str | Spec,
    *,
    distribution: str = "normal",
    tensor: str | torch.Tensor | None = None,
    size: int = 1 << 16,
    workers: int = 1,
    trials: int = 10,
    device: str | None = None,
) -> dict[str, Any]:
    """Size, error and speed of a codec on one vector; with ``workers`` > 1 also the error of the workers' mean.

    tensor: a tensor, or the path of a safetensors file; else ``size`` values of a ``distribution``. device: where to
    measure; by default the tensor's device, else the CPU.

    Keys: codec, vector, size, bits (per element, header included), nmse, nmse_std, encode_gb_s and decode_gb_s (of
    fp32 input), and with workers: mean_error (independent vectors), mean_error_identical (identical vectors: error that
    does not fall with the number of workers is bias), bytes_up (the largest over workers).
    """
    if size < 1 or workers < 1 or trials < 1:
        raise CodecError("size, workers and trials are at least 1")
    spec = parse(spec) if isinstance(spec, str) else spec
    given = tensor is not None and not (isinstance(tensor, str) and not tensor)
    if isinstance(tensor, str) or not given:
        x = load(str(tensor)) if given else vector(distribution, size)
    else:
        check_tensor(tensor)
        assert isinstance(tensor, torch.Tensor)
        x = tensor.detach().reshape(-1).to(torch.float32)
    x = x.to(device or x.device)
    if not x.numel() or not float(x.abs().max()):
        raise CodecError("the vector is zero: there is no relative error")
    error, spread, bits = nmse(spec, x, trials)
    codec = make(spec)
    blob = codec.encode(x, seed=1)
    encode = best_seconds(lambda: codec.encode(x, seed=1))
    decoding = best_seconds(lambda: decode(blob, x.device, x.numel()))
    row: dict[str, Any] = {
        "codec": str(spec),
        "vector": (tensor if isinstance(tensor, str) else "tensor") if given else distribution,
        "size": x.numel(),
        "trials": trials,
        "bits": bits,
        "nmse": error,
        "nmse_std": spread,
        "encode_gb_s": x.numel() * 4 / encode / 1e9,
        "decode_gb_s": x.numel() * 4 / decoding / 1e9,
        "device": str(x.device),
    }
    if workers > 1:
        others = [x] if given else []
        while len(others) < workers:
            others.append(
                x[torch.randperm(x.numel())] if given else vector(distribution, size, len(others)).to(x.device)
            )
        row["workers"] = workers
        row["mean_error"] = mean_error(spec, others, trials=max(1, trials // 4))
        row["mean_error_identical"] = mean_error(spec, [x] * workers, trials=max(1, trials // 4))
        row["bytes_up"] = max(simulate(spec, others).bytes_up)
    return row
