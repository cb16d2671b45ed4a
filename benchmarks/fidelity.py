"""The comparisons that papers publish, made again side by side: the tables of docs/fidelity.md.

    python -m benchmarks.fidelity SECTION ...
        turboquant, qjl, global_qsgd, dithering, cocktail, aqsgd, log, hops, thc          seconds
        rounding, powersgd, ablation, local, onebit, epochs           train a small model: one to three minutes

Each section prints its table.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from statistics import mean

import torch
from torch import nn

from farflung import compress
from farflung.compress.codec import bytes_tensor, tensor_bytes
from farflung.compress.exchange.measurement import mean_error, nmse
from farflung.compress.primitives import philox
from farflung.compress.primitives.key import Key
from farflung.compress.primitives.vectors import vector
from farflung.compress.stateful.aqsgd import Receiver, Sender

from . import orderings, orderings_trained
from .fidelity_model import Characters, interval, text, workers

SIZES = (1 << 10, 1 << 16, 1 << 20)
SETUPS = [(kind, size) for kind in ("normal", "lognormal", "student3") for size in SIZES] + [("hetero", 1 << 16)]
"""The vectors that errors are published for; with 1 to 4 bits 40 set-ups."""


@compress.register
class PublishedProduct(compress.Codec):
    """TurboQuant's inner-product code as published: the residual's signs after a Gaussian matrix (QJL), for one block.

    Not one of farflung's codecs: the matrix has d² numbers, and its product rounds otherwise on each device."""

    declaration = compress.declare(
        "turboquant_qjl", 250, "TurboQuant's product with a Gaussian matrix",
        bits=lambda values, count: values["bits"] * count + 64,
        parameters=(compress.Parameter("bits", 4, "per coordinate", 1, 8),),
    )  # fmt: skip
    keyed = True

    def _first(self) -> compress.Codec | None:
        bits = self.spec.number("bits")
        return compress.make(f"turboquant:bits={bits - 1},block=0") if bits > 1 else None

    def _matrix(self, count: int, seed: int, step: int) -> torch.Tensor:
        return philox.normal(count * count, Key(seed, step), 0x514A4C).view(count, count).double()

    def write(self, x: torch.Tensor, key: Key) -> list[bytes]:  # type: ignore[override]
        first = self._first()
        blob = b"" if first is None else first.encode(x, key.seed, key.step)
        rest = x.double() if first is None else (x - compress.decode(blob)).double()
        signs = (self._matrix(len(x), key.seed, key.step) @ rest >= 0).to(torch.uint8)
        return [len(blob).to_bytes(4, "little"), blob, bytes(tensor_bytes(rest.norm().float().view(1))), bytes(signs)]

    def read(self, reader, header, device):  # type: ignore[no-untyped-def]
        blob = bytes(reader.take(int.from_bytes(reader.take(4), "little")))
        length, count = reader.float32(), header.elements
        signs = bytes_tensor(reader.take(count), torch.uint8).double() * 2 - 1
        back = self._matrix(count, header.seed, header.step).T @ signs * (math.sqrt(math.pi / 2) / count * length)
        return (back if not blob else back + compress.decode(blob)).float()


def turboquant() -> Iterator[str]:
    """TurboQuant_mse against EDEN with its least-error factor: the same rotation and levels, another factor."""
    yield "| vector | elements | bits | EDEN, biased | TurboQuant_mse | ratio |"
    yield "| --- | --- | --- | --- | --- | --- |"
    won = 0
    for kind, size in SETUPS:
        x, trials = vector(kind, size), 10 if size < 1 << 20 else 2
        for bits in (1, 2, 3, 4):
            ours = nmse(f"eden:bits={bits},biased=true,block=0", x, trials)[0]
            theirs = nmse(f"turboquant:bits={bits},block=0", x, trials)[0]
            won += ours < theirs
            yield f"| {kind} | {size} | {bits} | {ours:.5g} | {theirs:.5g} | {theirs / ours:.4f} |"
    yield f"\nEDEN has less error in {won} of {4 * len(SETUPS)} set-ups."


def qjl() -> Iterator[str]:
    """Unbiased codes at d = 1024: the published Gaussian QJL, our orthonormal one, EDEN."""
    x = vector("normal", 1 << 10)
    yield "| bits | published, Gaussian | its theory | `turboquant:kind=prod` | its theory | `eden` | its theory |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    distortion = {0: 1.0, 1: 0.36338, 2: 0.117482, 3: 0.034548, 4: 0.009501}
    for bits in (1, 2, 3, 4):
        rest = distortion[bits - 1]
        cells = [
            (nmse(f"turboquant_qjl:bits={bits}", x, 12)[0], math.pi / 2 * rest),
            (nmse(f"turboquant:bits={bits},kind=prod,block=0", x, 40)[0], (math.pi / 2 - 1) * rest),
            (nmse(f"eden:bits={bits},block=0", x, 40)[0], distortion[bits] / (1 - distortion[bits])),
        ]
        yield f"| {bits} | " + " | ".join(f"{value:.4g}" for cell in cells for value in cell) + " |"


def divided(tensors: list[torch.Tensor], seed: int) -> torch.Tensor:
    """Global-QSGD's public path: divide by n before rounding, so that the sum fits int8."""
    count, top = len(tensors), max(float(one.abs().max()) for one in tensors)
    total = torch.zeros_like(tensors[0])
    for rank, one in enumerate(tensors):
        total += (one / (top * count) * 127 + philox.uniform(one.numel(), Key(seed, 0, rank).private, 0)).floor()
    return total * (top / 127)


def global_qsgd() -> Iterator[str]:
    yield "| workers | vectors | divided by n, 8 bits | `global_qsgd` | `global_qsgd`, each rounding by itself |"
    yield "| --- | --- | --- | --- | --- |"
    for how in ("the same", "half shared", "independent"):
        for count in (4, 16, 64):
            x = workers(count, how)
            true = torch.stack([one.double() for one in x]).mean(0)
            energy = float(true.square().sum())
            theirs = mean(float((divided(x, seed).double() - true).square().sum()) / energy for seed in range(3))
            ours = mean_error("global_qsgd", x, 3)
            apart = mean(float((alone(x, seed).double() - true).square().sum()) / energy for seed in range(3))
            yield f"| {count} | {how} | {theirs:.3g} | {ours:.3g} | {apart:.3g} |"


def alone(tensors: list[torch.Tensor], seed: int) -> torch.Tensor:
    """8-bit Global-QSGD whose integers are summed in a wider accumulator, without shared rounding."""
    count, top = len(tensors), max(float(one.abs().max()) for one in tensors)
    total = torch.zeros_like(tensors[0])
    for rank, one in enumerate(tensors):
        total += (one / top * 127 + philox.uniform(one.numel(), Key(seed, 0, rank).private, 0)).floor()
    return total * (top / 127 / count)


def cocktail() -> Iterator[str]:
    """The ratios that are published, and what they cost."""
    yield (
        "| random, top, bits | bits by the paper's format | times fewer than fp16, fp32 | bits here | times fewer than "
        "fp16, fp32 | error of one round: normal, t3, hetero |"
    )
    yield "| --- | --- | --- | --- | --- | --- |"
    for random, top, bits in (
        (0.1, 0.2, 4),
        (0.15, 0.2, 4),
        (0.1, 0.1, 4),
        (0.4, 0.5, 4),
        (0.5, 0.5, 4),
        (0.1, 0.2, 2),
    ):
        paper = random * (1 + top * (bits + 16 / 128))
        spec = f"cocktail:random={random},top={top},bits={bits}"
        found = [nmse(spec, vector(kind, 1 << 18), 4) for kind in ("normal", "student3", "hetero")]
        here = found[0][2]
        errors = ", ".join(f"{one[0]:.4g}" for one in found)
        yield (
            f"| {random}, {top}, {bits} | {paper:.4f} | {16 / paper:.0f}, {32 / paper:.0f} | {here:.4f} | "
            f"{16 / here:.0f}, {32 / here:.0f} | {errors} |"
        )


def visits(spec: str, drift: float, count: int) -> tuple[float, float]:
    """(bits a value, squared error over energy), means over the visits of samples whose activations change by so much
    of their size from one visit to the next, and keep it. "full": the first visit in fp32, then 2 bits of the
    change."""
    random = torch.Generator().manual_seed(3)
    x = torch.randn(8, 2048, generator=random)
    stateful = spec.startswith("aqsgd")
    sender, receiver = Sender(spec if stateful else "aqsgd"), Receiver(spec if stateful else "aqsgd")
    kept, bits, errors = torch.zeros_like(x), 0.0, []
    for visit in range(count):
        if stateful:
            blob = sender.encode(visit, list(range(8)), x)
            got = receiver.receive(visit, blob)
            assert got.values is not None
            y = got.values.view_as(x)
            sender.commit(visit)
            receiver.commit(visit)
        elif spec == "full":
            blob = compress.make("aqsgd:first_bits=2" if visit else "none").encode(x - kept)
            kept = y = kept + compress.decode(blob)
        else:
            blob = compress.make(spec).encode(x, 1, visit)
            y = compress.decode(blob)
        bits += 8 * len(blob) / x.numel() / count
        errors.append(float((y - x).square().sum() / x.square().sum()))
        x = (1 - drift**2 / 2) * x + math.sqrt(drift**2 - drift**4 / 4) * torch.randn(x.shape, generator=random)
    return bits, mean(errors)


def aqsgd() -> Iterator[str]:
    """Whole runs at equal bytes: the first visit counts."""
    specs = ["full", "aqsgd:bits=2,first_bits=8", "aqsgd", "int4:rounding=nearest", "tile"]
    names = "fp32 first, then 2 bits | `aqsgd:bits=2` (first 8) | `aqsgd` (first 8, then 4) | `int4`, nearest | `tile`"
    yield f"| change a visit | visits | {names} |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for drift in (0.01, 0.1, 0.3, 1.0, 2**0.5):
        for count in (3, 14, 40):
            cells = ["{:.2f} bits: {:.2g}".format(*visits(spec, drift, count)) for spec in specs]
            yield f"| {drift:.3g} | {count} | " + " | ".join(cells) + " |"


def rounding_error(spec: str, exact: str, x: torch.Tensor) -> float:
    """Of what is sent: squared error over its energy."""
    sent = compress.decode(compress.make(exact).encode(x, 5, 1)) != 0
    y = compress.decode(compress.make(spec).encode(x, 5, 1))
    return float((y - x)[sent].square().sum() / x[sent].square().sum())


def log() -> Iterator[str]:
    yield "| values | top | linear | `values=log` | ratio |"
    yield "| --- | --- | --- | --- | --- |"
    cases = [(kind, vector(kind, 1 << 18)) for kind in ("normal", "student3", "lognormal", "hetero")]
    cases.append(("uniform", torch.rand(1 << 18, generator=torch.Generator().manual_seed(1)) * 2 - 1))
    for kind, x in cases:
        for top in (0.2, 1.0):
            base = f"cocktail:random=1.0,top={top}"
            linear = rounding_error(f"{base},bits=4", f"{base},bits=8", x)
            found = rounding_error(f"{base},bits=4,values=log", f"{base},bits=8", x)
            yield f"| {kind} | {top} | {linear:.4g} | {found:.4g} | {found / linear:.2f} |"


def hops() -> Iterator[str]:
    yield "| codec | bits | one hop | butterfly | ring |"
    yield "| --- | --- | --- | --- | --- |"
    x = workers(8, "half shared")
    for spec in ("int8", "mxfp8", "rotq:bits=6", "dynamiq:bits=6", "rotq", "dynamiq:bits=4", "int4", "mxfp4", "nvfp4"):
        bits = nmse(spec, x[0], 1)[2]
        cells = [mean_error(spec, x, 2, **how) for how in ({}, {"pattern": "butterfly"}, {"pattern": "ring"})]
        yield f"| `{spec}` | {bits:.2f} | " + " | ".join(f"{one:.3g}" for one in cells) + " |"


def trained(spec: str | None, shared: bool, seed: int, steps: int, members: int = 8) -> list[float]:
    """Validation losses along the way: the members' gradients, encoded and averaged."""
    torch.manual_seed(seed)
    data, model = text(), Characters()
    cut = len(data) * 9 // 10
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    windows = torch.arange(17)

    def loss(first: int, last: int, count: int) -> torch.Tensor:
        places = torch.randint(first, last - 17, (count,))
        rows = data[places[:, None] + windows]
        return nn.functional.cross_entropy(model(rows[:, :16]), rows[:, 16])

    codec, parameters, found = compress.make(spec) if spec else None, list(model.parameters()), []
    for step in range(steps):
        mean_gradient = torch.zeros(sum(p.numel() for p in parameters))
        for rank in range(members):
            own = torch.autograd.grad(loss(0, cut, 8), parameters)
            flat = torch.cat([one.reshape(-1) for one in own])
            if codec is None:
                mean_gradient += flat / members
            else:
                blob = codec.encode(flat, seed, step, rank, members if shared else 1)
                compress.add(blob, mean_gradient, 1 / members)
        at = 0
        for p in parameters:
            p.grad = mean_gradient[at : at + p.numel()].view_as(p)
            at += p.numel()
        optimizer.step()
        if step + 1 in (steps // 4, steps // 2, steps):
            state = torch.get_rng_state()
            torch.manual_seed(99)
            with torch.no_grad():
                found.append(float(loss(cut, len(data), 4000)))
            torch.set_rng_state(state)
    return found


def rounding(seeds: int = 5, steps: int = 80) -> Iterator[str]:
    """Loss curves with the members' rounding shared, and each by itself."""
    torch.set_num_threads(1)
    exact = [trained(None, False, seed, steps) for seed in range(seeds)]
    yield f"| codec | rounding | {' | '.join(f'step {at}' for at in (steps // 4, steps // 2, steps))} |"
    yield "| --- | --- | --- | --- | --- |"
    yield "| none | | " + " | ".join(f"{mean(column):.4f}" for column in zip(*exact, strict=True)) + " |"
    for spec in ("int4", "int2"):
        for shared in (False, True):
            runs = [trained(spec, shared, seed, steps) for seed in range(seeds)]
            cells = []
            for place in range(3):
                more = [run[place] - base[place] for run, base in zip(runs, exact, strict=True)]
                cells.append(f"{mean(more):+.4f} ± {interval(more):.4f}")
            yield f"| `{spec}` | {'shared' if shared else 'each by itself'} | " + " | ".join(cells) + " |"


SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    "turboquant": turboquant, "qjl": qjl, "global_qsgd": global_qsgd, "cocktail": cocktail, "aqsgd": aqsgd, "log": log,
    "hops": hops, "rounding": rounding, **orderings.SECTIONS,
    **orderings_trained.SECTIONS,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="+", choices=SECTIONS)
    for name in parser.parse_args().sections:
        print(f"\n{name}\n")
        for line in SECTIONS[name]():
            print(line, flush=True)


if __name__ == "__main__":
    main()
