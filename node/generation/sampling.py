"""How the next token is drawn and which tokens the model sees: the same for a whole model and layer by layer."""

from __future__ import annotations

import torch
from torch import Tensor


def next_token(logits: Tensor, temperature: float, generator: torch.Generator) -> int:
    """The token that follows, drawn from softmax(logits / temperature); with temperature 0 the likeliest.

    ``logits``: [vocabulary], any float dtype, any device. ``generator``: a CPU generator; the draw is made on the CPU,
    so that equal logits give the same text on every device. ValueError: the logits are not finite.
    """
    logits = logits.detach().float().cpu()
    if not bool(torch.isfinite(logits).all()):
        raise ValueError("the logits are not finite")
    if temperature <= 0:
        return int(logits.argmax())
    return int(torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator))


def window_start(start: int, total: int, longest: int) -> int:
    """The index of the first token that the model is given, in a text of ``total`` tokens. ``start``: the index for the
    token before.

    The model is given fewer than ``longest`` tokens (its context); if there are more, the last ``longest`` // 2.
    """
    return start if total - start < longest else total - max(1, longest // 2)
