"""Whether an arrived result may be staged, and what to do if not."""

from __future__ import annotations

from .messages import AskContribution, Effect, Part, Refuse, Result, RoundPlan, SendHeld, TwoResults, what_counts
from .standing import Standing


def take(mine: Standing, sender: str, chain: int, result: Result, now: float) -> list[Effect]:
    """Take a result of the open round, or a region's sum. ``mine``: this node's state."""
    current, part = mine.current(), mine.plan.parts[result.part]
    if chain != mine.chain:
        return [Refuse(sender, mine.differs(sender, chain), diverged=True)]
    publisher = part.publisher
    if publisher == mine.me and sender in part.regional:
        return _regional(mine, sender, result, now)
    known = current.results.get(result.part, current.unmatched.get(result.part))
    if known is not None and publisher != mine.me and not same_words(known, result):
        signed = mine.attested(current.number, result)
        return [TwoResults(known, result) if signed else _forged(mine, sender, part)]
    if result.part in current.results and sender == publisher:
        return [SendHeld(publisher, result.part)]  # its publisher has not received the confirmation
    if known is not None:
        return []
    if sender not in (publisher, part.taker(mine.index[mine.me])) and not current.asked:
        return [Refuse(sender, f"a result of part {result.part} that {sender} does not publish and was not asked for")]
    if publisher == mine.me:
        return [Refuse(sender, f"a result of part {result.part}, which this node publishes itself")]
    if not mine.attested(current.number, result):
        return [_forged(mine, sender, part)]
    if mine.index[mine.me] in result.contributors and not mine.has_offered(part):
        why = f"{publisher} counted a contribution of {mine.me} to part {part.index} that {mine.me} has not made"
        return [Refuse(sender, why, blocks=True)]
    wrong: list[Effect] = []
    for index, digest in zip(result.contributors, result.digests, strict=True):
        got = current.contributions.get((result.part, index))
        if got is not None and got.digest != digest:
            wrong.append(Refuse(sender, f"{publisher} counted another contribution of {mine.plan.members[index]}"))
    if mine.plan.pattern == "all_to_all":
        if wrong and (mine.vouch is None or _differs_here(mine, result, mine.index[mine.me])):
            return _standing(mine, sender, result)
        for index in result.contributors:
            if _differs_here(mine, result, index):
                key = (result.part, index)
                current.disputed[key] = current.contributions.pop(key)
        if mine.missing(result):
            current.unmatched[result.part] = result
            return [AskContribution(publisher, result.part, index) for index in mine.missing(result)]
    current.results[result.part] = result
    return [*wrong, SendHeld(publisher, result.part), *mine.hand_on(result), *mine.next_phase(result)]


def malformed(plan: RoundPlan, result: Result) -> str:
    """What a result says that no round can have; empty: nothing."""
    contributors = result.contributors
    if sorted(set(contributors)) != list(contributors) or any(i >= len(plan.members) for i in contributors):
        return f"contributors {contributors} of {plan.section} are no list of members"
    if not contributors or len(result.digests) != len(contributors):
        return f"a result of {plan.section} without a digest for each contributor"
    if len(result.factors) not in (0, len(contributors)) or not all(0 <= one <= 1 for one in result.factors):
        return f"a result of {plan.section} whose factors are not from 0 to 1, one for each"
    return ""


def _forged(mine: Standing, sender: str, part: Part) -> Refuse:
    why = f"a result of part {part.index} that {part.publisher} has not signed"
    return Refuse(sender, why, blocks=True)


def _standing(mine: Standing, sender: str, result: Result) -> list[Effect]:
    """All-to-all: a result lists another contribution than came here, and no signature shows which of two members is at
    fault. The round cannot go on here, so this is said with the points of what blocks, of the publisher; a member that
    only passes on what the publisher said has no part in it."""
    current, publisher = mine.current(), mine.plan.parts[result.part].publisher
    if sender == publisher:
        current.disbelieved[result.part] = result
    before = current.disbelieved.get(result.part)
    blamed = publisher if before is not None and same_words(before, result) else sender
    others = [mine.plan.members[i] for i in result.contributors if _differs_here(mine, result, i)]
    why = f"{publisher} counted another contribution of {' and '.join(others)}"
    return [Refuse(blamed, f"{why} than {mine.me} has: round {current.number} cannot go on", blocks=True)]


def _differs_here(mine: Standing, result: Result, index: int) -> bool:
    """Whether this node holds another contribution of a member than a result lists."""
    got = mine.current().contributions.get((result.part, index))
    listed = dict(zip(result.contributors, result.digests, strict=True))
    return got is not None and listed.get(index, got.digest) != got.digest


def _regional(mine: Standing, sender: str, result: Result, now: float) -> list[Effect]:
    """The sum of another region for a part that this node publishes."""
    current, part, taker = mine.current(), mine.plan.parts[result.part], mine.index[sender]
    if any(part.taker(index) != sender for index in result.contributors):
        why = f"a sum of part {part.index} over members of other regions than that of {sender}"
        return [Refuse(sender, why, blocks=mine.plan.patient)]  # else its region is left out at the deadline
    if (part.index, taker) in current.sums:
        if current.sums[part.index, taker].digest != result.digest:
            return [Refuse(sender, f"two different sums of the region of {sender} in round {current.number}")]
        return []
    current.sums[part.index, taker] = result
    mine.measure(part, now)
    return []


def same_words(one: Result, other: Result) -> bool:
    """Whether two results of a part say the same."""
    return what_counts(one) == what_counts(other) and one.sizes == other.sizes
