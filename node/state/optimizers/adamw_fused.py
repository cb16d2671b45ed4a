"""AdamW in one pass over each vector, by torch's fused kernel: for local steps on a GPU, where members need not agree
on the last bit."""

from __future__ import annotations

import torch

from ..sections.section import Section


def takes(section: Section) -> bool:
    """Whether the fused kernel may step this section: members need not agree on x (x is not g), and all vectors are
    fp32 on one GPU."""
    alike = all(one.device == section.x.device and one.dtype == torch.float32 for one in section.moments.values())
    return section.x.device.type == "cuda" and section.x is not section.g and alike


def step(
    section: Section, count: int, rate: float, betas: tuple[float, float], eps: float, weight_decay: float
) -> None:
    """The ``count``-th step with these moments: equal to AdamW.step up to rounding. Biases and norms do not decay."""
    layout = section.layout
    vectors = (section.x, section.grad, section.moments["m"], section.moments["v"])
    views = [[values for _, values in layout.views(vector)] for vector in vectors]
    taken = torch.full((), float(count), device=section.x.device)
    for matrices in (True, False):
        which = [number for number, shape in enumerate(layout.shapes) if (len(shape) >= 2) == matrices]
        if which:
            x, grad, m, v = ([one[number] for number in which] for one in views)
            torch._fused_adamw_(
                x,
                grad,
                m,
                v,
                [],
                [taken] * len(which),
                lr=rate,
                beta1=betas[0],
                beta2=betas[1],
                weight_decay=weight_decay if matrices else 0.0,
                eps=eps,
                amsgrad=False,
                maximize=False,
            )
