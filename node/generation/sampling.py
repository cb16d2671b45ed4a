"""How a text grows, token by token: the one definition for every way in which logits are made."""

from __future__ import annotations

import torch
from torch import Tensor


def next_token(logits: Tensor, temperature: float, generator: torch.Generator) -> int:
    """The token that follows, drawn from softmax(logits / temperature); with temperature 0 the likeliest.

    ``logits``: [vocabulary], of any float type, on any device; ``generator`` is of the CPU, where the draw is made, so
    that a seed gives the same text on every device whose logits are the same. ValueError where they are not finite.
    """
    logits = logits.detach().float().cpu()
    if not bool(torch.isfinite(logits).all()):
        raise ValueError("the logits are not finite")
    if temperature <= 0:
        return int(logits.argmax())
    return int(torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator))


def window_start(start: int, total: int, longest: int) -> int:
    """Where the tokens begin that a model sees, of a text of ``total`` tokens that it saw from ``start`` on.

    A model sees fewer than ``longest`` tokens, its context; where there are more, the last half of that goes on.
    """
    return start if total - start < longest else total - max(1, longest // 2)
