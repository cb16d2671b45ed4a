"""With which members of a view a node exchanges anything: a pure function with the same answer at both ends of a link.

These are its neighbours in the pipeline, the group of each of its stages, and the nodes that it fetches state from or
serves state to. Connections to the others would bring nothing, and each broken connection causes a view change.
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
    """The members among ``names`` to which ``me`` has a connection.

    holders: layer -> the nodes that hold its reference. shadows: (spare, the node whose place it follows). committer:
    the node that decides the commit point of a step that all nodes take together. first: the node whose weights all
    others start with. tied: the first and the last stage share a parameter.
    """
    layers = {name: plan.layers_of(name) for name in plan.nodes}
    follows = {spare: plan.stages_of(like) for spare, like in shadows if like in layers}
    last = len(plan.stages) - 1

    def stages(name: str) -> set[int]:
        held = set(plan.stages_of(name)) if name in layers else set(follows.get(name, ()))
        return held | {0, last} if tied and held & {0, last} else held

    def serves(one: str, other: str) -> bool:
        """Whether ``one`` holds a layer that ``other`` is to hold."""
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
    """Whether two nodes of a pipeline exchange activations, gradients, a text or a step's commit: neighbours do, and so
    do the first node and each other one."""
    row = plan.pipelines[plan.pipeline_of(one)]
    pairs = [*pairwise(row), *((row[0], node) for node in row)]
    return any({one, other} == set(pair) for pair in pairs)
