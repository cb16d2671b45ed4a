"""Members that lie about what they have learnt, within every limit: their x - g is another before it is encoded."""

from __future__ import annotations

import torch

from farflung.node.rounds.arithmetic.exchange import Exchange

KINDS = ("sign flip", "noise", "copy", "stale")


class Liars:
    """Patches ``Exchange.contributions`` of the members named. In one process, so that a copier sees its victim's."""

    def __init__(self, kinds: dict[str, str], victim: str = "") -> None:
        self.kinds, self.victim = kinds, victim
        self._true = Exchange.contributions
        self._seen: dict[str, torch.Tensor] = {}
        self._chance = torch.Generator().manual_seed(11)

    def contributions(self, exchange: Exchange, round: int):
        """What takes the method's place."""
        name, section = exchange.plan.members[exchange.me], exchange.section
        difference = section.x - section.g
        kind = self.kinds.get(name)
        if kind:
            section.x.copy_(section.g + self._lie(kind, name, difference))
        if name == self.victim:
            self._seen["copied"] = difference
        return self._true(exchange, round)

    def _lie(self, kind: str, name: str, difference: torch.Tensor) -> torch.Tensor:
        if kind == "sign flip":
            return -difference
        if kind == "noise":
            noise = torch.randn(difference.shape, generator=self._chance)
            return noise * (difference.norm() / noise.norm().clamp_min(1e-12))
        if kind == "copy":
            return self._seen.get("copied", torch.zeros_like(difference))
        before = self._seen.get(name, difference)
        self._seen[name] = difference.clone()
        return before


def install(monkeypatch, liars: Liars) -> None:
    """Until the test ends."""
    monkeypatch.setattr(Exchange, "contributions", lambda exchange, round: liars.contributions(exchange, round))
