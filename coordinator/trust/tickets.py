"""Tickets: secrets that admit nodes, or give commands, until they expire, are used up or are revoked.

Only the sha256 of a secret is stored. Secrets are random with at least 128 bits, so a slow hash would add nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

from ...proto.errors import FarflungError, Refused
from ..store.rows import Ticket
from ..store.store import Store

_AGAIN = "ask for a new link: `farflung coordinator token STATE` prints one"


def digest(secret: str) -> str:
    """The stored sha256 of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def same(secret: str, stored: str) -> bool:
    """Whether ``secret`` is the one whose digest was stored, in constant time."""
    return hmac.compare_digest(digest(secret), stored)


def make_ticket(store: Store, now: float, ttl: float | None = None, uses: int | None = None) -> str:
    """A new ticket, ``"ID.SECRET"``: valid ``ttl`` seconds (None: for ever) for ``uses`` first joins or,
    an operator's, commands (None: any number)."""
    number, secret = secrets.token_hex(4), secrets.token_hex(16)
    store.tickets.add(Ticket(number, digest(secret), now, None if ttl is None else now + ttl, uses, False))
    return f"{number}.{secret}"


def given_out(store: Store, ticket: str) -> Ticket:
    """The row of a ticket that this run gave out and did not revoke, even if it has expired or is used up. Raises
    Refused for others."""
    number, _, secret = ticket.partition(".")
    known = store.tickets.numbered(number)
    if known is None or not same(secret, known.secret_hash):
        raise Refused("the ticket is wrong: this run never gave it out", _AGAIN)
    if known.revoked:
        raise Refused(f"the ticket {number} was revoked", _AGAIN)
    return known


def check_ticket(store: Store, ticket: str, now: float, take_use: bool, returns: bool = False) -> str:
    """The id of a valid ticket, one use of it taken if wanted; Refused says why it is not valid and what to do.

    ``returns``: the node comes back with its key, so an expired or used-up ticket is accepted.
    """
    known = given_out(store, ticket)
    number, again = known.number, _AGAIN
    if known.expires is not None and now >= known.expires and not returns:
        raise Refused(f"the ticket {number} expired {_ago(now - known.expires)} ago", again)
    if (known.uses == 0 and not returns) or (take_use and not store.tickets.take_use(number)):
        raise Refused(f"the ticket {number} is used up", again)
    return number


def make_operator(store: Store, ticket: str) -> None:
    """Make a ticket ("ID.SECRET") an operator's: it allows commands, and admits no node."""
    store.put(f"operator {ticket.partition('.')[0]}", "1")


def is_operator(store: Store, ticket: str) -> bool:
    """Whether a ticket ("ID.SECRET" or ID) is an operator's."""
    return store.get(f"operator {ticket.partition('.')[0]}") is not None


def check_joining(store: Store, ticket: str, now: float, take_use: bool, returns: bool = False) -> str:
    """``check_ticket`` for a node; an operator's ticket admits none."""
    if is_operator(store, ticket):
        again = "give nodes a link of `farflung coordinator token STATE`"
        raise Refused("this link gives commands, and admits no node", again)
    return check_ticket(store, ticket, now, take_use, returns)


def check_operator(store: Store, ticket: str, now: float) -> str:
    """The id of a valid operator's ticket, of which one use is taken. Refused for other tickets."""
    number = check_ticket(store, ticket, now, take_use=False)
    if not is_operator(store, number):
        raise Refused(
            "this link lets nodes join, and commands nobody",
            "give the state folder; or a link of `farflung coordinator token STATE --operator`",
        )
    return check_ticket(store, ticket, now, take_use=True)


def parse_duration(text: str) -> float:
    """Seconds of "90s", "15m", "24h", "7d". FarflungError when the text is no duration."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if not found:
        raise FarflungError(f"{text!r} is not a duration", "write it like 90s, 15m, 24h or 7d")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
