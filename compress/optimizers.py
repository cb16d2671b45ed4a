"""Optimisers that exchange encoded gradients or momenta by phase programs: ``OneBitAdam``, ``ZeroOneAdam``, ``Lamb``.

Each takes *local* gradients (no DDP averaging) and a torch.distributed group; without a group there is one worker. Each
worker clips its own gradient before ``step``, because the global norm is not known before the exchange. If values are
not finite on some worker, all workers skip the step, and no state changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from .codec import add, decode, make
from .exchange import collectives
from .exchange.phases import split
from .exchange.requests import Context, Gather, Program, Reduce, Scatter
from .primitives.key import mix

Drive = Callable[[Program], torch.Tensor]


def squeeze_twice(spec: str, x: torch.Tensor, context: Context, worker: torch.Tensor, server: torch.Tensor) -> Program:
    """The mean of the workers' vectors, encoded on the way up and again on the way down, with error feedback on both
    sides (1-bit Adam, Tang et al., ICML 2021). ``worker`` ``[n]`` and ``server`` ``[own piece]``: the errors so far;
    the new ones are put into context.memory under these names, and the caller keeps them if the step counts."""
    codec = make(spec)
    total = x + worker
    pieces = split(total, context.size)
    blobs = tuple(
        codec.encode(piece, mix(context.tensor_seed, i), context.step, context.rank) for i, piece in enumerate(pieces)
    )
    answers = yield Scatter(blobs)
    context.memory["worker"] = total - torch.cat([decode(b, x.device).view(-1) for b in blobs])
    mine = server.clone()
    for blob, _ in answers:
        add(blob, mine, 1.0 / context.size)
    blob = codec.encode(mine, mix(context.tensor_seed, context.rank), context.step, context.size + context.rank)
    results = yield Gather(blob)
    context.memory["server"] = mine - decode(blob, x.device).view(-1)
    return torch.cat([decode(b, x.device).view(-1) for b, _ in results])


def average(x: torch.Tensor, context: Context) -> Program:
    """The plain mean."""
    total = yield Reduce(x, "sum")
    return total / context.size  # type: ignore[no-any-return]


class _Shared(torch.optim.Optimizer):
    """Base class: the parameters as one flat fp32 vector, and the exchange."""

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any], group: Any, seed: int) -> None:
        super().__init__(params, defaults)
        if len(self.param_groups) != 1:
            raise ValueError("this optimiser takes one parameter group")
        self._parameters: list[torch.nn.Parameter] = self.param_groups[0]["params"]
        self._group, self._seed = group, seed
        self._rank = 0 if group is None else dist.get_rank(group)
        self._size = 1 if group is None else dist.get_world_size(group)
        count = sum(p.numel() for p in self._parameters)
        self._device = self._parameters[0].device
        m, v = torch.zeros(count, device=self._device), torch.zeros(count, device=self._device)
        self.shared: dict[str, Any] = {"step": 0, "m": m, "v": v}

    def _gradient(self) -> torch.Tensor:
        flat = [
            torch.zeros(p.numel(), device=p.device) if p.grad is None else p.grad.detach().reshape(-1).float()
            for p in self._parameters
        ]
        return torch.cat(flat)

    def _weights(self) -> torch.Tensor:
        return torch.cat([p.detach().reshape(-1).float() for p in self._parameters])

    def _move(self, step: torch.Tensor) -> None:
        at = 0
        for p in self._parameters:
            p.add_(step[at : at + p.numel()].view(p.shape).to(p.dtype))
            at += p.numel()

    def _context(self, tensor: int = 0) -> Context:
        return Context(self._seed, tensor, self.shared["step"], self._rank, self._size)

    def _drive(self, program: Program) -> torch.Tensor:
        return collectives.drive([program], self._group)[0]

    def _errors(self, tag: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        zeros = torch.zeros(count, device=self._device)
        own, worker = split(zeros, self._size)[self._rank], self.shared.get(f"{tag}.worker", zeros)
        return worker, self.shared.get(f"{tag}.server", own)

    def _squeeze(self, spec: str, x: torch.Tensor, tag: str) -> torch.Tensor:
        """The mean, encoded twice; keeps both errors."""
        context = self._context()
        worker, server = self._errors(tag, x.numel())
        out = self._drive(squeeze_twice(spec, x, context, worker, server))
        self.shared[f"{tag}.worker"], self.shared[f"{tag}.server"] = context.memory["worker"], context.memory["server"]
        return out

    def state_dict(self) -> dict[str, Any]:
        """This worker's state. Errors differ between workers, so each must save its own."""
        state = super().state_dict()
        state["shared"] = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in self.shared.items()}
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = dict(state_dict)
        shared = state.pop("shared")
        super().load_state_dict(state)
        self.shared = {
            key: value.to(self._device, copy=True) if isinstance(value, torch.Tensor) else value
            for key, value in shared.items()
        }


class OneBitAdam(_Shared):
    """1-bit Adam: Adam with averaged gradients for ``freeze_step`` steps; then the second moment is frozen and the
    momentum is averaged in few bits, with error feedback on both sides. Coordinates whose second moment is zero at the
    freeze (they never had a gradient) no longer move, since one bit cannot encode zero."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        freeze_step: int = 100,
        spec: str = "sign:scale=rms",
        group: Any = None,
        seed: int = 0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, group, seed)
        self.freeze_step, self.spec = freeze_step, spec

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        """One step of all workers together."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        options, state = self.param_groups[0], self.shared
        first, second = options["betas"]
        gradient = self._gradient()
        if not collectives.agree(bool(torch.isfinite(gradient).all()), self._group):
            return loss
        if state["step"] < self.freeze_step:
            gradient = self._drive(average(gradient, self._context()))
            state["m"] = first * state["m"] + (1 - first) * gradient
            state["v"] = second * state["v"] + (1 - second) * gradient**2
        else:
            m = self._squeeze(self.spec, first * state["m"] + (1 - first) * gradient, "momentum")
            state["m"] = torch.where(state["v"] > 0, m, torch.zeros_like(m))
        step = state["m"] / (state["v"].sqrt() + options["eps"])
        if options["weight_decay"]:
            step = step + options["weight_decay"] * self._weights()
        self._move(-options["lr"] * step)
        state["step"] += 1
        return loss


class ZeroOneAdam(_Shared):
    """0/1 Adam (Lu et al., ICLR 2023): until ``freeze_step`` the second moment is updated at increasing intervals (they
    double after every ``scaler`` updates), and between these steps gradients are averaged in one bit. Then come local
    steps, whose sums are averaged in one bit at intervals that double every ``local_scaler`` steps, up to
    ``local_limit``."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        freeze_step: int = 1000,
        scaler: int = 16,
        local_scaler: int = 1000,
        local_limit: int = 16,
        spec: str = "sign:scale=rms",
        group: Any = None,
        seed: int = 0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps}, group, seed)
        self.freeze_step, self.scaler, self.spec = freeze_step, scaler, spec
        self.local_scaler, self.local_limit = local_scaler, local_limit
        count = self.shared["m"].numel()
        self.shared |= {
            "interval": 1,
            "updates": 0,
            "local": 1,
            "local_steps": 0,
            "u": torch.zeros(count, device=self._device),
            "rates": 0.0,
        }

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        """One step of all workers together."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        options, state = self.param_groups[0], self.shared
        gradient = self._gradient()
        if not collectives.agree(bool(torch.isfinite(gradient).all()), self._group):
            return loss
        if state["step"] < self.freeze_step:
            self._averaged(gradient, options)
        else:
            if state["step"] == self.freeze_step:  # errors of gradients cannot be added to sums of steps
                for key in [k for k in state if k.startswith("gradient.")]:
                    del state[key]
            self._local(gradient, options)
        state["step"] += 1
        return loss

    def _averaged(self, gradient: torch.Tensor, options: dict[str, Any]) -> None:
        state, (first, second) = self.shared, options["betas"]
        if state["step"] % state["interval"] == 0:
            gradient = self._drive(average(gradient, self._context()))
            state["v"] = second * state["v"] + (1 - second) * gradient**2
            state["updates"] += 1
            if state["updates"] == self.scaler:
                state["updates"], state["interval"] = 0, state["interval"] * 2
        else:
            gradient = self._squeeze(self.spec, gradient, "gradient")
        m = first * state["m"] + (1 - first) * gradient
        state["m"] = torch.where(state["v"] > 0, m, torch.zeros_like(m))
        self._move(-options["lr"] * state["m"] / (state["v"].sqrt() + options["eps"]))

    def _local(self, gradient: torch.Tensor, options: dict[str, Any]) -> None:
        state, (first, _) = self.shared, options["betas"]
        spread = state["v"].sqrt() + options["eps"]
        state["m"] = torch.where(
            state["v"] > 0, first * state["m"] + (1 - first) * gradient, torch.zeros_like(gradient)
        )
        step = -options["lr"] * state["m"] / spread
        self._move(step)
        state["u"] = state["u"] + step
        state["rates"] += options["lr"]
        state["local_steps"] += 1
        if state["local_steps"] % state["local"] == 0:
            mean = self._squeeze(self.spec, state["u"] * spread, "local")
            mean = torch.where(state["v"] > 0, mean, torch.zeros_like(mean))
            self._move(mean / spread - state["u"])
            if state["rates"] > 0:
                state["m"] = -mean / state["rates"]
            state["u"], state["rates"] = torch.zeros_like(step), 0.0
        if state["local_steps"] % self.local_scaler == 0:
            state["local"] = min(self.local_limit, state["local"] * 2)


class Lamb(_Shared):
    """LAMB (You et al., ICLR 2020): Adam's step, scaled for each parameter by |weights| / |step|, for large batches.
    With a spec, the workers' gradients are averaged under that codec, with error feedback where it is biased."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        spec: str | None = None,
        group: Any = None,
        seed: int = 0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, group, seed)
        self.codec = None if spec is None else make(spec)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        """One step of all workers together."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        options, state = self.param_groups[0], self.shared
        first, second = options["betas"]
        gradient = self._gradient() + state.get("error", 0.0)
        if not collectives.agree(bool(torch.isfinite(gradient).all()), self._group):
            return loss
        if self.codec is not None:
            context = self._context()
            total = self._drive(self.codec.rounds(gradient, context))
            if not self.codec.traits.unbiased and context.own is not None:
                state["error"] = gradient - context.own
            gradient = total / self._size
        elif self._group is not None:
            gradient = self._drive(average(gradient, self._context()))
        state["step"] += 1
        state["m"] = first * state["m"] + (1 - first) * gradient
        state["v"] = second * state["v"] + (1 - second) * gradient**2
        m, v = state["m"] / (1 - first ** state["step"]), state["v"] / (1 - second ** state["step"])
        step = m / (v.sqrt() + options["eps"]) + options["weight_decay"] * self._weights()
        pieces = []
        for p, piece in zip(self._parameters, step.split([p.numel() for p in self._parameters]), strict=True):
            weight, size = float(p.detach().float().norm()), float(piece.norm())
            pieces.append(piece * (weight / size if weight > 0 and size > 0 else 1.0))
        self._move(-options["lr"] * torch.cat(pieces))
        return loss
