"""The order in which papers' ways of training end, made again in minutes on one core: sections of ``python -m
benchmarks.fidelity``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial

import torch
from torch import nn

from farflung import compress
from farflung.compress.exchange import simulation
from farflung.compress.exchange.phases import split
from farflung.compress.exchange.requests import Context
from farflung.compress.optimizers import squeeze_twice
from farflung.compress.stateful.aqsgd import Receiver, Sender

from .fidelity_model import LINE, Adam, Members, Run, compared


def local() -> Iterator[str]:
    """DiLoCo, streaming DiLoCo and SparseLoCo: rounds every 20 steps of 4 members with Adam."""
    diloco, sparse = partial(_local, outer=0.7, momentum=0.5), partial(_local, outer=1.0, momentum=0.0)
    cases: dict[str, tuple[str, Run]] = {
        "Adam on the whole batch": ("32", _together),
        "DiLoCo": ("1.6", diloco),
        "DiLoCo, outer momentum 0.9": ("1.6", partial(diloco, momentum=0.9)),
        "streaming DiLoCo, 4 fragments, 4 bits": ("0.2", partial(diloco, spec="int4", fragments=4)),
        "SparseLoCo, 64 of 4096, 2 bits": ("0.011", partial(sparse, spec="chunked_topk")),
        "SparseLoCo, 256 of 4096, 2 bits": ("0.044", partial(sparse, spec="chunked_topk:k=256")),
    }
    yield f"| method | bits a number and step | rate | loss | against Adam |\n{LINE}"
    yield from compared(cases, (5e-3, 1e-2))


def _together(rate: float, seed: int, steps: int = 160) -> float:
    members = Members(seed)
    x, adam = members.start.clone(), Adam(len(members.start), rate)
    for _ in range(steps):
        x += adam.step(torch.stack([members.gradient(x, rank) for rank in range(4)]).mean(0))
    return members.validation(x)


def _local(
    rate: float, seed: int, spec: str = "none", fragments: int = 1, outer: float = 0.7, momentum: float = 0.5
) -> float:
    steps = 160
    members, codec, every = Members(seed), compress.make(spec), 20
    g = members.start.clone()
    x, adams, m = [g.clone() for _ in range(4)], [Adam(len(g), rate) for _ in range(4)], torch.zeros_like(g)
    kept = [torch.zeros_like(g) for _ in range(4)]  # error feedback
    size = -(-len(g) // fragments)
    for step in range(1, steps + 1):
        for rank in range(4):
            x[rank] += adams[rank].step(members.gradient(x[rank], rank))
        for fragment in range(fragments):
            if step != steps and (step + fragment * every // fragments) % every:
                continue
            here = slice(fragment * size, (fragment + 1) * size)
            total = torch.zeros_like(g[here])
            for rank in range(4):
                value = x[rank][here] - g[here] + 0.95 * kept[rank][here]
                sent = compress.decode(codec.encode(value, seed, step, rank, 4))
                kept[rank][here] = value - sent if codec.spec.name == "chunked_topk" else 0.0
                total += sent / 4
            m[here] = momentum * m[here] + total
            g[here] += outer * (total + momentum * m[here])  # Nesterov
            for one in x:
                one[here] = g[here]
    return members.validation(g)


def onebit() -> Iterator[str]:
    """1-bit Adam against Adam: dense for so many steps, then the second moment stays and one bit of momentum goes. The
    rate falls to 0, as the paper's does."""
    for steps in (160, 480):
        cases: dict[str, tuple[str, Run]] = {"Adam": ("32", partial(_onebit, dense=steps, steps=steps))}
        for dense in (steps // 8, steps // 4):
            bits = (32 * dense + 2 * (steps - dense)) / steps
            cases[f"1-bit Adam after {dense} steps"] = (f"{bits:.1f}", partial(_onebit, dense=dense, steps=steps))
        yield f"\n| {steps} steps | bits a number and step | rate | loss | against Adam |\n{LINE}"
        yield from compared(cases, (5e-3, 1e-2))


def _onebit(top: float, seed: int, dense: int, steps: int) -> float:
    members = Members(seed)
    x, adam = members.start.clone(), Adam(len(members.start), top)
    worker = [torch.zeros_like(x) for _ in range(4)]
    server: list[torch.Tensor] = []
    for step in range(steps):
        adam.rate = rate = top * (1 - step / steps)
        own = [members.gradient(x, rank) for rank in range(4)]
        if step < dense:
            x += adam.step(torch.stack(own).mean(0))
            continue
        contexts = [Context(seed, 0, step, rank, 4) for rank in range(4)]
        server = server or [torch.zeros_like(one) for one in split(x, 4)]
        programs = [
            squeeze_twice("sign:scale=rms", 0.9 * adam.m + 0.1 * g, context, w, s)
            for g, context, w, s in zip(own, contexts, worker, server, strict=True)
        ]
        adam.m = simulation.run(programs)[0][0]
        worker, server = [c.memory["worker"] for c in contexts], [c.memory["server"] for c in contexts]
        adam.m = torch.where(adam.v > 0, adam.m, torch.zeros_like(adam.m))
        x -= rate * adam.m / ((adam.v / (1 - 0.99**dense)).sqrt() + 1e-8)
    return members.validation(x)


def epochs() -> Iterator[str]:
    """AQ-SGD against direct quantisation: two stages fine-tune for 8 epochs; gradients go back in int8."""
    yield f"| forward | bits a number | rate | training loss after 8 epochs | against no codec |\n{LINE}"
    methods: dict[str, tuple[str, Run]] = {"none": ("32", partial(_tuned, ""))}
    for bits in (2, 3, 4):
        direct, change = f"tile:bits={bits},outlier=1000", f"aqsgd:bits={bits}"
        methods[f"direct, {bits} bits: `{direct}`"] = (f"{bits + 0.27:.2f}", partial(_tuned, direct))
        whole = (8.13 + 7 * (bits + 0.13)) / 8
        methods[f"AQ-SGD, {bits} bits: `{change}`"] = (f"{whole:.2f}", partial(_tuned, change))
    yield from compared(methods, (2e-3, 4e-3))


@lru_cache(maxsize=8)
def _trained_before(seed: int) -> torch.Tensor:
    members = Members(seed, 1)
    x, adam = members.start.clone(), Adam(len(members.start), 5e-3)
    for _ in range(150):
        x += adam.step(members.gradient(x, 0))
    return x


class _Link(torch.autograd.Function):
    """The link between two stages: what comes out forward is given, gradients go back in int8."""

    @staticmethod
    def forward(ctx, h, sent):  # type: ignore[no-untyped-def]
        return sent.clone()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return compress.decode(compress.make("int8").encode(gradient.contiguous(), 5, 1)), None


def _tuned(spec: str, rate: float, seed: int, count: int = 512) -> float:
    """The loss on the samples that were learned from, 8 times each, by a model trained before on other text."""
    members = Members(seed, 1)
    members.load(_trained_before(seed))
    data = members.data[members.cut :]
    random = torch.Generator().manual_seed(seed)
    rows = data[torch.randint(0, len(data) - 17, (count,), generator=random)[:, None] + torch.arange(17)]
    model, optimizer = members.model, torch.optim.Adam(members.model.parameters(), lr=rate)
    sender = Sender(spec) if spec.startswith("aqsgd") else None
    receiver = Receiver(spec) if sender else None
    step = 0
    for _ in range(8):
        for ids in torch.randperm(count, generator=random).split(32):
            h = model.layers[1](model.layers[0](model.embed(rows[ids, :16]).flatten(1)))
            if sender is not None and receiver is not None:
                got = receiver.receive(step, sender.encode(step, ids.tolist(), h.detach()))
                assert got.values is not None
                sender.commit(step)
                receiver.commit(step)
                h = _Link.apply(h, got.values.view_as(h))
            elif spec:
                h = _Link.apply(h, compress.decode(compress.make(spec).encode(h.detach(), seed, step)))
            loss = nn.functional.cross_entropy(model.layers[2](h), rows[ids, 16])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(rows[:, :16]), rows[:, 16]))


SECTIONS: dict[str, Callable[[], Iterator[str]]] = {"local": local, "onebit": onebit, "epochs": epochs}
