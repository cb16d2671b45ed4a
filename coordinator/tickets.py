"""``farflung coordinator token``: more links for a run, or the end of one. Works beside a running coordinator."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from ..proto.errors import FarflungError
from ..proto.link import NO_FINGERPRINT, Link, split_address
from .identity import load_authority, make_ticket, parse_duration
from .store import Store

DEFAULT_TTL = "24h"
IDENTITY = "identity"


def issue(state: Path, ttl: str = DEFAULT_TTL, uses: int | None = None) -> Link:
    """A new link. FarflungError: no such run, a run that never listened, a duration that is none."""
    seconds = parse_duration(ttl)
    with closing(Store(state)) as store:
        return make_link(store, state, seconds, uses)


def make_link(store: Store, state: Path, ttl: float | None, uses: int | None = None) -> Link:
    """A new ticket and the link around it; ``ttl`` in seconds, None for ever."""
    run, address = store.get("run"), store.get("address")
    if run is None or address is None:
        raise FarflungError(f"the run in {state} has not started yet", "start it: farflung coordinator start JOB")
    host, port = split_address(address)
    insecure = store.get("insecure") == "1"
    fingerprint = NO_FINGERPRINT if insecure else load_authority(state / IDENTITY).fingerprint
    return Link(host, port, run, make_ticket(store, time.time(), ttl, uses), fingerprint)


def revoke_ticket(state: Path, number: str) -> None:
    """End a ticket by its id. Nodes that joined with it stay. FarflungError when there is none."""
    with closing(Store(state)) as store:
        if not store.revoke_ticket(number):
            known = ", ".join(ticket.number for ticket in store.tickets() if not ticket.revoked) or "none"
            raise FarflungError(f"there is no ticket {number!r}", f"tickets of this run: {known}")
