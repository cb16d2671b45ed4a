"""The order in which papers' codecs end, made again in minutes on one core: sections of ``python -m
benchmarks.fidelity``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import mean

import torch

from farflung import compress
from farflung.compress.exchange.measurement import mean_error
from farflung.compress.exchange.simulation import simulate
from farflung.compress.primitives.vectors import vector

from .fidelity_model import LINE, Adam, Characters, Members, Run, compared, workers


def thc() -> Iterator[str]:
    """THC against codecs of its paper: the error of the mean, as members become more."""
    counts = (1, 4, 16)
    yield "| codec | bits | " + " | ".join(f"{n} members" for n in counts) + " |"
    yield LINE
    uneven, even = "thc:granularity=42,tail=1024", "thc:granularity=0,tail=1024"
    for spec in (uneven, "thc", even, "qsgd", "terngrad", "sign", "topk:ratio=0.1"):
        x = workers(16, "half shared", 1 << 12)
        bits = 8 * len(compress.make(spec).encode(x[0])) / x[0].numel()
        yield f"| `{spec}` | {bits:.2f} | " + " | ".join(f"{mean_error(spec, x[:n], 2):.3g}" for n in counts) + " |"


def dithering() -> Iterator[str]:
    """Global-QSGD: equal steps against powers of two, both of 8 bits a member."""
    yield "| vectors | members | `global_qsgd` | `global_exp` | equal steps / powers of two |"
    yield LINE
    for kind in ("normal", "student3", "lognormal", "hetero"):
        for count in (4, 16):
            x = [vector(kind, 1 << 13, seed) for seed in range(count)]
            equal, powers = (mean_error(spec, x, 2) for spec in ("global_qsgd", "global_exp"))
            yield f"| {kind} | {count} | {equal:.3g} | {powers:.3g} | {equal / powers:.2g} |"


def powersgd() -> Iterator[str]:
    """Errors of the gradients of consecutive steps, 16 of them, the last 12 in the mean; then losses by rank."""
    yield "| rank | each step anew | by parameter | 16-bit factors | a bucket, anew | a bucket | the bucket's best |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for rank in (1, 2, 4, 8):
        members, found = Members(0), []
        x, adam, memories = members.start.clone(), Adam(len(members.start), 5e-3), [{} for _ in range(12)]
        for step in range(56):
            g = torch.stack([members.gradient(x, r) for r in range(4)]).mean(0)
            x += adam.step(g)
            if step >= 40:
                found.append(_errors(members, g, rank, step, memories))
        yield f"| {rank} | " + " | ".join(f"{mean(column):.3f}" for column in zip(*found[4:], strict=True)) + " |"
    yield "\n| method | bits a number | rate | loss | against none |"
    yield LINE
    methods: dict[str, tuple[str, Run]] = {"none": ("32", partial(_momentum, None))}
    for name, spec, warm in (
        ("rank 1", "powersgd:rank=1", True),
        ("rank 2", "powersgd:rank=2", True),
        ("rank 4", "powersgd:rank=4", True),
        ("rank 4, each step anew", "powersgd:rank=4", False),
    ):  # fmt: skip
        methods[name] = (_bits(spec), partial(_momentum, spec, warm=warm))
    yield from compared(methods, (0.1, 0.2))


def _errors(
    members: Members, g: torch.Tensor, rank: int, step: int, memories: list[dict[str, torch.Tensor]]
) -> list[float]:
    own = members.parameters
    cut = [one.view_as(p) for one, p in zip(g.split([p.numel() for p in own]), own, strict=True)]
    energy, spec = float(g.square().sum()), f"powersgd:rank={rank}"

    def off(xs: list[torch.Tensor], kept: list[dict[str, torch.Tensor]], more: str = "") -> float:
        made = [simulate(spec + more, [x], step=step, memories=[m]).mean - x for x, m in zip(xs, kept, strict=True)]
        return sum(float(one.square().sum()) for one in made) / energy

    side = int(len(g) ** 0.5) + 1
    square = torch.nn.functional.pad(g, (0, side * -(-len(g) // side) - len(g))).view(side, -1)
    rest = torch.linalg.svdvals(square)[rank:].square().sum()
    best = float(rest) / energy
    new: list[dict[str, torch.Tensor]] = [{} for _ in cut]
    kept = [off(cut, new), off(cut, memories[:5]), off(cut, memories[5:10], ",factors=16")]
    return [*kept, off([g], [{}]), off([g], memories[10:11]), best]


def _bits(spec: str) -> str:
    model = Characters()
    sizes = [8 * simulate(spec, [p.detach()] * 2).bytes_up[0] for p in model.parameters()]
    return f"{sum(sizes) / sum(p.numel() for p in model.parameters()):.2f}"


def _momentum(spec: str | None, rate: float, seed: int, warm: bool = True, steps: int = 80) -> float:
    """SGD with momentum 0.9 of 4 members, with error feedback."""
    members = Members(seed)
    x, m, errors = members.start.clone(), torch.zeros_like(members.start), [torch.zeros_like(members.start)] * 4
    sizes = [p.numel() for p in members.parameters]
    memories: list[list[dict[str, torch.Tensor]]] = [[{} for _ in range(4)] for _ in sizes]
    for step in range(steps):
        own = [members.gradient(x, rank) + errors[rank] for rank in range(4)]
        g = torch.stack(own).mean(0)
        if spec:
            parts = []
            for place, pieces in enumerate(zip(*(one.split(sizes) for one in own), strict=True)):
                shaped = [one.view_as(members.parameters[place]) for one in pieces]
                kept = memories[place] if warm else None
                parts.append(simulate(spec, shaped, step=step, seed=place, memories=kept).mean.reshape(-1))
            g = torch.cat(parts)
            errors = [one - g for one in own]
        m = 0.9 * m + g
        x = x - rate * m
    return members.validation(x)


def ablation() -> Iterator[str]:
    """Random, top-k and quantisation alone and together at equal bytes, of the differences of members with Adam."""
    for title, specs in (
        ("0.16 bits", {"all three": "cocktail:random=0.1,top=0.2,bits=4", "random only": "randomk:ratio=0.005,run=1",
                       "top-k only": "topk:ratio=0.0066,values=bf16"}),
        ("1 bit", {"all three": "cocktail:random=0.5,top=0.28,bits=4", "random only": "randomk:ratio=0.031,run=1",
                   "top-k only": "topk:ratio=0.047,values=bf16", "quantisation only": "sign"}),
    ):  # fmt: skip
        yield f"\n| {title} | bits a number | rate | loss | against no codec |\n{LINE}"
        methods: dict[str, tuple[str, Run]] = {"no codec": ("32", partial(_differences, "none"))}
        for name, spec in specs.items():
            bits = 8 * len(compress.make(spec).encode(vector("student3", 52448))) / 52448
            methods[f"{name}: `{spec}`"] = (f"{bits:.2f}", partial(_differences, spec))
        yield from compared(methods, (5e-3, 1e-2))


def _differences(spec: str, rate: float, seed: int, steps: int = 80) -> float:
    """Delta mode: members step by themselves, encode x - g, and keep of it what was not sent."""
    members, codec = Members(seed), compress.make(spec)
    g = members.start.clone()
    x, adams = [g.clone() for _ in range(4)], [Adam(len(g), rate) for _ in range(4)]
    for step in range(steps):
        total = torch.zeros_like(g)
        for rank in range(4):
            x[rank] += adams[rank].step(members.gradient(x[rank], rank))
            sent = compress.decode(codec.encode(x[rank] - g, seed, step, rank, 4))
            x[rank] -= sent
            total += sent / 4
        g += total
        for one in x:
            one += total
    return members.validation(g)


SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    "thc": thc, "dithering": dithering, "powersgd": powersgd, "ablation": ablation,
}  # fmt: skip
