"""A leaving node's last contribution in ``delta`` mode: as much of x - g as its uplink carries in time."""

from __future__ import annotations

import math
from statistics import median

from .... import compress
from ...rounds.protocol.standing import ROUNDS_WITHOUT_DEADLINE
from ...state.sections.room import leave
from ...state.sections.vectors import squared_norm_of_sum
from ..member.view_member import ViewMember

SECONDS = 15.0
"""Seconds for the last contribution: a spot instance has 25 s or more, and the others must take over in the rest."""
_DENSE = (("none", 32.2), ("bf16", 16.2), ("int8", 8.3), ("int4", 4.3))
_BITS_KEPT = 42.0
"""Bits that ``topk`` needs for each kept value, including its index."""


def last_codec(bits: float) -> str:
    """The codec with the least loss that takes at most ``bits`` bits per element."""
    for spec, needed in _DENSE:
        if bits >= needed:
            return spec
    return f"topk:ratio={max(bits / _BITS_KEPT, 1e-6):.2g}"


def say_all(view: ViewMember, rate: float) -> None:
    """From now on this node contributes with the codec of least loss that its uplink of ``rate`` bits per second can
    send in time.

    The job's codec stays if that is about the same, if the rate is not known (0), and in rounds of several phases.
    Other members do not wait longer for this node than for any other, so it must not take longer than a round.
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
    """The node stays after all: use the job's codec again."""
    for link in view.links.values():
        link.exchange.encoder.last = None


def left_unsaid(view: ViewMember, reached: int) -> str:
    """Words for what is lost with the node; empty if all was sent. ``reached``: the last step whose effect on this node
    is in g."""
    if view.gradient:  # an error feedback belongs to gradients of other steps, and is as large as the stage
        kept = [one.feedback for one in view.state.sections.values() if one.feedback is not None]
        if not kept:
            return ""
        norm = math.sqrt(math.fsum(squared_norm_of_sum([one]) for one in kept))
        leave(*kept)
        of = math.hypot(*(one.own_norm for one in view.exchanges.values()))
        return f"; an error feedback of {norm / of:.1f} gradients goes with it" if norm and of else ""
    steps = view.step - reached
    squares = 0.0
    for one in view.state.sections.values():
        fed = [] if one.feedback is None else [one.feedback]
        squares += squared_norm_of_sum([one.x, one.g, *fed], [1.0, -1.0, 1.0][: 2 + len(fed)])
        one.leave()
    norm = math.sqrt(squares)
    if not norm:
        return ""
    return f"; {steps} local step{'s' * (steps != 1)} and a rest of norm {norm:.3g} go with it"
