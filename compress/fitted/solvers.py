"""Computes the level tables. ``python -m farflung.compress.fitted.solvers`` writes ``tables.json`` again.

All tables are for a standard normal variable z, with density φ and distribution Φ.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch


def density(z: np.ndarray) -> np.ndarray:
    out: np.ndarray = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
    return out


def distribution(z: np.ndarray) -> np.ndarray:
    out: np.ndarray = torch.special.ndtr(torch.from_numpy(np.asarray(z, np.float64))).numpy()
    return out


def quantile(p: float) -> float:
    return float(torch.special.ndtri(torch.tensor(p, dtype=torch.float64)))


def lloyd_max(bits: int) -> np.ndarray:
    """The positive half of the 2^bits levels of least squared error (Max, 1960): Newton on the centroid equations."""
    count = 1 << (bits - 1)
    levels = np.array([np.sqrt(3) * quantile(0.5 + (i + 0.5) / (2 * count)) for i in range(count)])
    for _ in range(60):
        edges = np.concatenate([[0.0], (levels[1:] + levels[:-1]) / 2, [40.0]])
        mass = np.diff(distribution(edges))
        centroid = -np.diff(density(edges)) / mass
        lower = density(edges[:-1]) * (centroid - edges[:-1]) / mass
        upper = density(edges[1:]) * (edges[1:] - centroid) / mass
        lower[0], upper[-1] = 0.0, 0.0
        jacobian = np.diag(1 - lower / 2 - upper / 2) - np.diag(lower[1:] / 2, -1) - np.diag(upper[:-1] / 2, 1)
        step = np.linalg.solve(jacobian, centroid - levels)
        levels = levels + step
        if np.abs(step).max() < 1e-14:
            break
    return levels


@lru_cache(maxsize=32)
def stochastic_levels(bits: int, grid: int, tail: float, symmetric: bool) -> tuple[int, ...]:
    """2^bits integers from 0 to ``grid`` that minimise the variance of stochastic rounding on [-t, t], with
    t = Φ⁻¹(1 - tail/2), integer k standing for -t + 2 t k / grid (THC, Li et al., NSDI 2024). Exact."""
    t = quantile(1 - tail / 2)
    q = np.linspace(-t, t, grid + 1)
    mass, phi, moment = distribution(q), density(q), distribution(q) - q * density(q)
    s0, s1 = mass[None, :] - mass[:, None], phi[:, None] - phi[None, :]
    s2 = moment[None, :] - moment[:, None]
    cost = -s2 + (q[:, None] + q[None, :]) * s1 - q[:, None] * q[None, :] * s0
    cost[np.tril_indices(grid + 1)] = np.inf
    count = 1 << bits
    if symmetric:
        best = np.full(grid + 1, np.inf)
        for j in range(grid // 2 + 1, grid + 1):
            best[j] = cost[grid - j, j]
        choices = []
        for _ in range(count // 2 - 1):
            total = best[:, None] + 2 * cost
            choices.append(total.argmin(0))
            best = total.min(0)
        upper = [grid]
        for choice in reversed(choices):
            upper.append(int(choice[upper[-1]]))
        return tuple(sorted([grid - j for j in upper] + upper))
    best = np.full(grid + 1, np.inf)
    best[0] = 0.0
    choices = []
    for _ in range(count - 1):
        total = best[:, None] + cost
        choices.append(total.argmin(0))
        best = total.min(0)
    path = [grid]
    for choice in reversed(choices):
        path.append(int(choice[path[-1]]))
    return tuple(reversed(path))


def shared_assignment(levels: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """QUIC-FL with shared randomness: for each z, the message of each h, so that the mean over h of the levels is z.

    levels: ``[H, 2^b]``, rising in each row. Each h takes its level nearest to z + λ(z), with the λ for which the mean
    is z; the h whose level jumps at that λ is randomised. Returns (messages ``[Z, H]``, probabilities of the next
    message ``[Z, H]``, λ ``[Z]``).
    """
    width = levels.shape[0]
    edges = (levels[:, 1:] + levels[:, :-1]) / 2
    jumps = np.diff(levels, axis=1)
    order = np.argsort(edges.reshape(-1), kind="stable")
    where = edges.reshape(-1)[order]
    sums = levels[:, 0].sum() + np.concatenate([[0.0], np.cumsum(jumps.reshape(-1)[order])])
    target = np.clip(z * width, sums[0], sums[-1])
    index = np.clip(np.searchsorted(sums, target, side="right") - 1, 0, len(where) - 1)
    rest = (target - sums[index]) / (sums[index + 1] - sums[index])
    row, _ = np.divmod(order, edges.shape[1])
    taken = np.zeros((len(where) + 1, width), np.int64)
    np.add.at(taken, (np.arange(1, len(where) + 1), row), 1)
    messages = np.cumsum(taken, 0)[index]
    probability = np.zeros((len(z), width))
    probability[np.arange(len(z)), row[index]] = rest
    return messages, probability, where[index] - z


def shared_levels(bits: int, width: int, tail: float = 1 / 512, turns: int = 3000) -> np.ndarray:
    """Levels ``[width, 2^bits]`` for QUIC-FL with ``width`` shared random values: each level goes to the
    mean of z + λ(z) over what is sent as it, on [-t, t]."""
    t = quantile(1 - tail / 2)
    z = np.linspace(-t, t, 2001)
    weight = density(z)
    count = 1 << bits
    spread = np.linspace(-1, 1, width)[:, None]
    levels = (np.arange(count) - (count - 1) / 2)[None, :] * (2 * t / max(1, count - 1)) + spread * t / count
    for _ in range(turns):
        messages, probability, multiplier = shared_assignment(levels, z)
        goal = (z + multiplier)[:, None]
        mass, first = np.full_like(levels, 1e-9), levels * 1e-9
        rows = np.broadcast_to(np.arange(width), messages.shape)
        for shift, share in ((0, 1 - probability), (1, probability)):
            to = np.minimum(messages + shift, count - 1)
            np.add.at(mass, (rows, to), weight[:, None] * share)
            np.add.at(first, (rows, to), weight[:, None] * share * goal)
        fresh = first / mass
        # The mean over h of the highest levels must reach t: the least costly way is in proportion to 1 / mass.
        for column, sign in ((-1, 1.0), (0, -1.0)):
            short = width * t - sign * fresh[:, column].sum()
            if short > 0:
                fresh[:, column] += sign * short / mass[:, column] / (1 / mass[:, column]).sum()
        fresh = (fresh - fresh[::-1, ::-1]) / 2
        levels = np.sort(levels + 0.3 * (fresh - levels), axis=1)
    return levels


def absmax_levels(bits: int, block: int = 256, samples: int = 1 << 13) -> np.ndarray:
    """2^bits levels on [-1, 1] with the least variance of stochastic rounding, for normal blocks divided by their
    largest magnitude."""
    from ..primitives.key import Key
    from ..primitives.philox import normal
    from .adaptive import optimal_levels

    z = normal(samples * block, Key(1), 0).double().view(samples, block)
    y = np.sort((z / z.abs().amax(1, keepdim=True)).abs().view(-1).numpy())
    grid = np.linspace(-1, 1, 4097)
    both = np.concatenate([-y[::-1], y])
    at = np.searchsorted(both, grid, side="right")
    sums = np.concatenate([[0.0], np.cumsum(both)]), np.concatenate([[0.0], np.cumsum(both**2)])
    levels = grid[optimal_levels(grid, at.astype(np.float64), sums[0][at], sums[1][at], 1 << bits)]
    return np.asarray((levels - levels[::-1]) / 2)


def write_tables() -> str:
    """The text of ``tables.json``: every level rounded to fp32 once, so that all machines decode the same bits."""

    def row(values: np.ndarray) -> str:
        return "[" + ", ".join(repr(float(np.float32(v))) for v in values) + "]"

    t = quantile(1 - 1 / 1024)
    widths = {1: 64, 2: 32, 3: 16, 4: 16}
    ladders = {bits: np.array(stochastic_levels(bits, 2400, 1 / 512, True)) for bits in widths}
    tables = {
        "lloyd": {bits: row(lloyd_max(bits)) for bits in range(1, 9)},
        "quic": {bits: row(-t + 2 * t * ladder / 2400) for bits, ladder in ladders.items()},
        "quic_shared": {
            bits: "[\n   " + ",\n   ".join(map(row, shared_levels(bits, width, turns=400))) + "]"
            for bits, width in widths.items()
        },
        "absmax": {bits: row(absmax_levels(bits)) for bits in (2, 3, 4, 5, 6, 8)},
    }
    parts = [
        f' "{name}": {{\n' + ",\n".join(f'  "{bits}": {text}' for bits, text in table.items()) + "}"
        for name, table in tables.items()
    ]
    return "{\n" + ",\n".join(parts) + "}\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(write_tables())
