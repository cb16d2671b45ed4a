"""Requests for missing messages of a round: what a member asks for, and whom it asks."""

from __future__ import annotations

from .messages import AskContribution, AskResult, Effect, Part, Refuse
from .standing import Standing

ASK_AGAIN_SECONDS = 5.0
"""Seconds before a member asks for what is missing, doubled each time. Links are reliable: requests are for messages
that a broken connection lost, and must not make bulk travel twice over a slow link."""
LONGEST_ASK_SECONDS = 60.0
"""The most seconds between two requests."""


def ask(mine: Standing, now: float, sending: bool = False) -> list[Effect]:
    """Ask for all that is missing. A result is asked of one member: first of the part's publisher, then of the others
    in turn. Contributions that this node adds up are asked of the members that have not sent them. If only the
    confirmation that another member holds a result is missing, the result is sent to all again, unless messages of this
    node are still being sent (``sending``)."""
    if mine.open is None:
        return []
    effects: list[Effect] = []
    turn = mine.open.asked
    mine.open.asked += 1
    mine.open.ask_at = now + min(LONGEST_ASK_SECONDS, ASK_AGAIN_SECONDS * 2 ** min(turn, 8))
    for part in filter(mine.has_offered, mine.parts):
        effects += _ask_for_terms(mine, part, sending)
        near = part.taker(mine.index[mine.me])
        sources = [n for n in dict.fromkeys((near, part.publisher, *mine.plan.members)) if n != mine.me]
        if not sources:
            continue
        source = sources[turn % len(sources)]
        late = mine.open.unmatched.get(part.index)
        if late is not None:
            disputed = any((part.index, index) in mine.open.disputed for index in mine.missing(late))
            if disputed and turn >= len(sources):  # only after a whole turn: a contribution may take long
                effects.append(_unshown(mine, part))
            effects += [AskContribution(source, part.index, index) for index in mine.missing(late)]
        elif part.index not in mine.open.results and part.publisher != mine.me:
            effects.append(AskResult(source, part.index))
    return effects


def _ask_for_terms(mine: Standing, part: Part, sending: bool) -> list[Effect]:
    """Ask for the contributions that this node lacks to sum a part, or for the confirmation that the sum is safe."""
    current = mine.current()
    if not mine.takes(part):
        return []
    if part.index not in current.deciding:
        direct = [i for i in mine.wanted(part) if (part.index, i) not in current.contributions]
        asked: list[Effect] = [AskContribution(mine.plan.members[i], part.index, i) for i in direct]
        if part.publisher == mine.me:
            late = [name for name in part.regional if (part.index, mine.index[name]) not in current.sums]
            asked += [AskResult(name, part.index) for name in late]
        return asked
    published = part.publisher == mine.me and part.index in current.results
    if published and not sending and not current.held.get(part.index):
        return mine.hand_on(current.results[part.index])
    return []


def _unshown(mine: Standing, part: Part) -> Refuse:
    """Refuse a publisher that has not shown, in good time, a contribution that it counted."""
    why = f"{part.publisher} counted another contribution to part {part.index} than came here, and does not show it"
    return Refuse(part.publisher, why, blocks=True)
