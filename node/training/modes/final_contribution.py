"""A node's last contribution in ``delta`` mode, before it goes: as much of x - g as its uplink carries in time."""

from __future__ import annotations

import math
from statistics import median

from .... import compress
from ...rounds.protocol.standing import ROUNDS_WITHOUT_DEADLINE
from ...state.optimizers.optimizers import squared_norm
from ..member.view_member import ViewMember

SECONDS = 15.0
"""For the last contribution: a spot instance has 25 s and more, and the others are to take over in the rest."""
_DENSE = (("none", 32.2), ("bf16", 16.2), ("int8", 8.3), ("int4", 4.3))
_BITS_KEPT = 42.0
"""That ``topk`` takes for each value it keeps, its place included."""


def last_codec(bits: float) -> str:
    """The codec that loses least with at most ``bits`` for each element."""
    for spec, needed in _DENSE:
        if bits >= needed:
            return spec
    return f"topk:ratio={max(bits / _BITS_KEPT, 1e-6):.2g}"


def say_all(view: ViewMember, rate: float) -> None:
    """From here on this node contributes with the codec that its uplink of ``rate`` bits a second has time for.

    The job's own stays where that is about the same, where the rate is not known (0), and where a round is more than
    one message. Nobody waits longer for this node than for any other, so it must not take longer than rounds do.
    """
    links = [link for link in view.links.values() if link.exchange.phased is None]
    if view.gradient or not rate or not links:
        return
    elements, seconds = 0, SECONDS
    for link in links:
        plan, me = link.rounds.plan, link.exchange.me
        for part in plan.parts:
            own = part.taker(me) == plan.members[me]
            copies = len(plan.members) - 1 if plan.pattern == "all_to_all" else int(not own)
            elements += copies * (part.stop - part.start)
        if len(link.rounds.durations) >= ROUNDS_WITHOUT_DEADLINE:
            seconds = min(seconds, median(link.rounds.durations))
    bits = rate * seconds / max(elements, 1)
    for link in links:
        usual = link.exchange.encoder.bits_sent()
        if bits > 2 * usual or usual * elements > rate * SECONDS:
            link.exchange.encoder.last = compress.make(last_codec(bits))


def say_no_more_than_usual(view: ViewMember) -> None:
    """The node stays after all."""
    for link in view.links.values():
        link.exchange.encoder.last = None


def left_unsaid(view: ViewMember, reached: int) -> str:
    """What goes with the node, in words; empty where everything was told. ``reached``: the step up to which g has what
    this node learnt."""
    if view.gradient:  # an error feedback would be another step's gradient, and as long as the stage
        kept = [one.feedback for one in view.state.sections.values() if one.feedback is not None]
        if not kept:
            return ""
        norm = math.sqrt(math.fsum(map(squared_norm, kept)))
        of = math.hypot(*(one.own_norm for one in view.exchanges.values()))
        return f"; an error feedback of {norm / of:.1f} gradients goes with it" if norm and of else ""
    steps = view.step - reached
    sections = view.state.sections.values()
    rests = [one.x - one.g if one.feedback is None else one.x - one.g + one.feedback for one in sections]
    norm = math.sqrt(sum(float(rest.square().sum()) for rest in rests))
    if not norm:
        return ""
    return f"; {steps} local step{'s' * (steps != 1)} and a rest of norm {norm:.3g} go with it"
