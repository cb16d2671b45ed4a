"""The elements that a stage takes on the device while it computes, where the weights that the optimiser moves lie in
main memory (offload.APART).

There is no vector of gradients on the device: each comes while a backward pass still has the values of its layer, and
goes to main memory at once. So the peak is that of one layer, the largest over the layers, and gradients count in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .workload import Layer

Elements = tuple[float, float]
"""Elements of 4 bytes: (kept for each microbatch in flight, others)."""


def spans(
    layers: Sequence[Layer], first: int, micro: int, *, recompute: bool, passing: bool, tied: bool
) -> Iterator[Elements]:
    """What layers first..last of all ``layers`` take beside weights that stay, for each last = first, first + 1, ...

    ``passing``: a block's weights are on the device only while it computes, and those of the block that the pass
    reaches next come meanwhile. ``tied``: the first and the last layer share a matrix, whose gradient waits, from the
    head's backward pass on, for the embedding's.
    """
    kept = most = 0.0
    for at in range(first, len(layers)):
        layer, is_block = layers[at], _is_block(layers, at)
        if tied and first == 0 and at == len(layers) - 1 > 0:
            most += layer.largest
        inside = (layer.stored or 8 * layer.activation) * micro + layer.copies
        comes = layers[at - 1].parameters if passing and is_block and at > first and _is_block(layers, at - 1) else 0.0
        busy = max(_busy(layer, inside, micro, is_block, passing) + comes, decoding_memory(layer, micro, recompute))
        most = max(most, kept + busy)
        before = layers[at - 1].activation if at else layer.entry
        kept += before * micro if recompute and is_block else inside
        after = layer.after * micro + layer.after_copies
        most = max(most, kept + after + layer.after_working * micro)
        yield kept + after, most - kept - after


def _is_block(layers: Sequence[Layer], at: int) -> bool:
    """Whether a layer is a block, or begins or ends with one."""
    layer = layers[at]
    return 0 < at < len(layers) - 1 or bool(layer.entry or layer.after)


def _busy(layer: Layer, inside: float, micro: int, is_block: bool, passing: bool) -> float:
    """Elements of a layer in its backward pass. ``inside``: what the pass needs of the forward pass."""
    half = layer.copies > 0
    working = layer.working * micro * (1.5 if half and is_block else 1.0)  # some of it is in fp32 for a moment
    comes = layer.largest  # in half precision too: it becomes fp32 when autocast's copy of the matrix is free
    if not is_block:  # of a head the logits' gradient is left when its matrix's comes
        return max(inside + working, layer.copies + working / 2 + comes)
    inside += layer.activation * micro  # the gradient of its output
    if not passing:
        return inside + max(working, working / 2 + comes)
    if half:  # what the backward pass needs are autocast's copies; the weights go when these are made
        made = layer.parameters + 2 * layer.activation * micro
        return inside + max(made, working / 2 + comes, working - layer.largest / 2)
    return inside + layer.parameters + max(working / 2 + comes, working - layer.largest)


def decoding_memory(layer: Layer, micro: int, recompute: bool) -> float:
    """Elements while a layer decodes its largest matrix: a layer that is computed again has not kept everything yet;
    else that is at the end of its forward pass, when half of the working memory is there."""
    return layer.temporary + (layer.decoding if recompute else layer.working / 2) * micro if layer.temporary else 0.0
