"""``farflung coordinator token``: more links for a run, or the end of one. Works beside a running coordinator."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from ...proto.errors import FarflungError
from ...proto.words.link import NO_FINGERPRINT, Link, split_address
from ..store.store import Store
from .authority import load_authority
from .sealing import shared_fingerprint
from .tickets import make_operator, make_ticket, parse_duration

DEFAULT_TTL = "24h"
DEFAULT_USES = 100
"""Default number of nodes that a link admits: more than a person pastes by hand, but too few to ruin a run."""
IDENTITY = "identity"


def issue(place: Path | str, ttl: str = DEFAULT_TTL, uses: int | None = None, operator: bool = False) -> Link:
    """A new link; ``place``: the state folder or the database's address. ``operator``: it gives ``uses`` commands
    (None: any number), and admits no node; else it admits ``uses`` nodes.

    FarflungError: there is no such run, it has never listened, or ``ttl`` is no duration.
    """
    seconds = parse_duration(ttl)
    with closing(Store(place)) as store:
        link = make_link(store, place, seconds, uses)
        if operator:
            make_operator(store, link.ticket)
        return link


@contextmanager
def operating(place: Path | str) -> Iterator[Link]:
    """A link for a command of a person with access to the state folder: whoever may write the database may command the
    run."""
    link = issue(place, "10m", operator=True)
    try:
        with closing(Store(place)) as store:
            # With a shared database the coordinator may be anywhere.
            near = store.get("listening") if store.server is None else None
        host, port = split_address(near or link.address)
        yield replace(link, host=host, port=port)
    finally:
        revoke_ticket(place, link.ticket.partition(".")[0])


def make_link(store: Store, place: Path | str, ttl: float | None, uses: int | None = None) -> Link:
    """A new ticket and the link around it; ``ttl`` in seconds, None for ever."""
    run, address = store.get("run"), store.get("address")
    if run is None or address is None:
        raise FarflungError(f"the run in {store.name} has not started yet", "start it: farflung coordinator start JOB")
    host, port = split_address(address)
    insecure = store.get("insecure") == "1"
    if insecure:
        fingerprint = NO_FINGERPRINT
    elif store.server is not None:
        fingerprint = shared_fingerprint(store)
    else:
        fingerprint = load_authority(Path(place) / IDENTITY).fingerprint
    return Link(host, port, run, make_ticket(store, time.time(), ttl, uses), fingerprint)


def default_uses(nodes: int) -> int:
    """Uses of the link of a run that begins with ``nodes`` nodes: enough for each to join once more from a new
    machine."""
    return max(DEFAULT_USES, 2 * nodes)


def revoke_ticket(place: Path | str, number: str) -> None:
    """Revoke a ticket by its id. Nodes that joined with it stay. FarflungError when there is no such ticket."""
    with closing(Store(place)) as store:
        if not store.tickets.revoke(number):
            known = ", ".join(ticket.number for ticket in store.tickets.all() if not ticket.revoked) or "none"
            raise FarflungError(f"there is no ticket {number!r}", f"tickets of this run: {known}")
