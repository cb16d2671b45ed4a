"""Whether an arrived contribution may count, and what to do if not."""

from __future__ import annotations

from .messages import AskContribution, Contribution, Effect, Equivocated, Refuse, SendHeld
from .standing import Standing


def take(
    mine: Standing, sender: str, of: str, part: int, chain: int, sent: Contribution, *, now: float
) -> list[Effect]:
    """Take a contribution of member ``of`` to the open round, sent by ``sender``. ``mine``: this node's state.

    In all-to-all every contribution is signed. A signature is checked only where it may matter: by the publisher, on a
    contribution that another member passes on, and if two contributions differ.
    """
    current = mine.current()
    if chain != mine.chain:
        return [Refuse(sender, mine.differs(of, chain), diverged=True)]
    key = (part, mine.index[of])
    held = current.contributions.get(key)
    if held is not None:
        return [] if held.digest == sent.digest else _second(mine, sender, key, held, sent)
    wanted = current.unmatched.get(part)
    if wanted is not None and key[1] in wanted.contributors:
        if wanted.digests[wanted.contributors.index(key[1])] != sent.digest:
            return _unlisted(mine, sender, key, sent)
    elif sender != of:
        return [Refuse(sender, f"a contribution of {of} that nobody asked {sender} for")]
    if sender != of or mine.takes(mine.plan.parts[part]):
        wrong = _looked_at(mine, sender, key, sent)
        if wrong:
            return wrong
    current.contributions[key] = sent
    if not mine.plan.followed and len({index for _, index in current.contributions}) == len(mine.plan.members):
        mine.log = []  # members that send messages of this round have applied all earlier ones
    mine.measure(mine.plan.parts[part], now)
    effects = _second(mine, sender, key, current.disputed.pop(key), sent) if key in current.disputed else []
    if wanted is not None and not mine.missing(wanted):
        del current.unmatched[part]
        current.results[part] = wanted
        effects.append(SendHeld(mine.plan.parts[part].publisher, part))
    return effects


def _looked_at(mine: Standing, sender: str, key: tuple[int, int], sent: Contribution) -> list[Effect]:
    """Check the signature of a contribution. Empty: it is valid. If the certificate is unknown, the contribution does
    not count and is asked for with the certificate; a member that passes on another's must send the certificate too."""
    (part, index), current = key, mine.current()
    of, vouched = mine.plan.members[index], mine.vouched(index, current.number, part, sent)
    if vouched is None and sender == of and key not in current.unknown:
        current.unknown.add(key)
        return [AskContribution(of, part, index)]
    return [] if vouched else [_unsigned(mine, sender, of)]


def _unsigned(mine: Standing, sender: str, of: str) -> Refuse:
    why = f"a contribution of {of} that {of} has not signed"
    return Refuse(sender, why, blocks=mine.plan.patient or mine.plan.whole)


def _unlisted(mine: Standing, sender: str, key: tuple[int, int], sent: Contribution) -> list[Effect]:
    """A contribution differs from the one that the publisher counted. Which of the two nodes is at fault shows when the
    counted one has arrived."""
    of, current = mine.plan.members[key[1]], mine.current()
    if mine.vouch is None:
        return [Refuse(sender, f"the contribution of {of} is not the one that the publisher counted")]
    wrong = _looked_at(mine, sender, key, sent)
    if wrong:
        return wrong
    before = current.disputed.setdefault(key, sent)
    return [] if before.digest == sent.digest else _second(mine, sender, key, before, sent)


def _second(mine: Standing, sender: str, key: tuple[int, int], held: Contribution, sent: Contribution) -> list[Effect]:
    """Two different contributions of one member to one part arrived. One that another member passed on has been checked
    already."""
    of, number = mine.plan.members[key[1]], mine.current().number
    if mine.vouch is None or of == mine.me:
        return [Refuse(sender, f"two different contributions of {of} to round {number}")]
    wrong = _looked_at(mine, sender, key, sent)
    if wrong:
        return wrong
    if not mine.vouched(key[1], number, key[0], held):
        return [_unsigned(mine, of, of)]
    return [Equivocated(key[0], key[1], held, sent)]
