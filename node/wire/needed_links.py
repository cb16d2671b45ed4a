"""With which members of a view a node exchanges anything: a pure function, and the same answer at both ends.

Neighbours in the pipeline, the group of each of its stages, and whoever it has state from or for. A connection to all
the others would be one that only breaks: each break was a view change for everybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from ...scheduler.plans import Plan


def needed_links(
    plan: Plan,
    names: Sequence[str],
    holders: Mapping[int, Sequence[str]],
    shadows: Sequence[tuple[str, str]],
    me: str,
    *,
    committer: str = "",
    first: str = "",
    tied: bool = False,
) -> set[str]:
    """The members that ``me`` has a connection to, of ``names``.

    holders: who has the reference of which layer. shadows: (spare, the node whose place it follows). committer: of a
    step that all nodes take together. first: whose weights everybody begins with. tied: the first and the last stage
    share a parameter.
    """
    layers = {name: plan.layers_of(name) for name in plan.nodes}
    follows = {spare: plan.stages_of(like) for spare, like in shadows if like in layers}
    last = len(plan.stages) - 1

    def stages(name: str) -> set[int]:
        held = set(plan.stages_of(name)) if name in layers else set(follows.get(name, ()))
        return held | {0, last} if tied and held & {0, last} else held

    def serves(one: str, other: str) -> bool:
        """Whether ``one`` holds something of what ``other`` is to hold."""
        wanted = layers.get(other, frozenset()) | {layer for stage in stages(other) for layer in plan.layers_in(stage)}
        return any(one in holders.get(layer, ()) for layer in wanted)

    mine = stages(me)
    found = set()
    for other in names:
        if other == me:
            continue
        near = me in layers and other in layers and _near(plan, me, other)
        starred = {me, other} & {committer, first} - {""} and {me, other} <= set(layers)
        if near or starred or mine & stages(other) or serves(other, me) or serves(me, other):
            found.add(other)
    return found


def _near(plan: Plan, one: str, other: str) -> bool:
    """Whether activations, gradients, a text or the commit of a pipeline's step go between two: neighbours, and its
    first node and any other."""
    row = plan.pipelines[plan.pipeline_of(one)]
    pairs = [*pairwise(row), *((row[0], node) for node in row)]
    return any({one, other} == set(pair) for pair in pairs)
