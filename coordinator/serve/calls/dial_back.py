"""Finds out whether others can dial a node; tried only at the address from which its join comes.

Otherwise anybody with a ticket could make the coordinator probe its own network (server-side request forgery). So an
address is first resolved to a number (including ``127.1``, ``2130706433``, ``::ffff:127.0.0.1`` and names), then
compared, then dialled as that number; the node learns only whether it worked. Members get the number too, so that a
name that later resolves to another address misleads no node.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from ....proto.connections.sockets import end_of
from ....proto.errors import FarflungError, NotNow, Refused
from ....proto.words.link import join_address, split_address
from ...run.nodes.dialling import dial

log = logging.getLogger(__name__)

DIAL_BACK_S = 3.0
_MOST = 4  # addresses of one name that are tried

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class Reached:
    """``address``: HOST:PORT at which others dial the node; ``dials_out``: it can't be dialled, so it dials the
    others."""

    address: str
    dials_out: bool


def canonical(host: str) -> Address | None:
    """The IP address in a host of a socket or of ``getaddrinfo``; IPv4 inside IPv6 counts as IPv4. None: no address."""
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def caller_of(peer: str) -> Address | None:
    """The caller's IP address, from gRPC's name of the peer."""
    end = end_of(peer)
    return canonical(end[0]) if end is not None else None


def may_dial(found: Address, caller: Address | None, allowed: Sequence[Network]) -> bool:
    """Whether the coordinator may dial the address ``found`` when ``caller`` joins."""
    return found == caller or any(found in network for network in allowed)


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Networks like 10.0.0.0/8 or single addresses. FarflungError: a text is neither."""
    try:
        return tuple(ipaddress.ip_network(text.strip(), strict=False) for text in texts)
    except ValueError as error:
        raise FarflungError(f"--dial-back: {error}", "write networks like 10.0.0.0/8 or fd00::/8") from None


async def dial_back(
    address: str, caller: Address | None, insists: bool, allowed: Sequence[Network] = (), patience: float = DIAL_BACK_S
) -> Reached:
    """Whether the node that joins from ``caller`` can be dialled at ``address`` (HOST:PORT).

    ``insists``: the node was given --advertise and does not dial out, so it is Refused if it can't be dialled.
    """
    hint = "set --advertise HOST:PORT to an address of this machine that the coordinator reaches"
    try:
        host, port = split_address(address)
    except FarflungError as error:
        raise Refused(error.message, hint) from None
    found = await _resolved(host, port, patience)
    own = [one for one in found if may_dial(one, caller, allowed)][:_MOST]
    for one in own:
        target = join_address(str(one), port)
        why = await dial(target, patience)
        if not why:
            return Reached(target, False)
        log.info("a node that joins from %s cannot be dialled at %s: %s", caller, target, why)
    if not insists:
        return Reached(address, True)
    if own or not found:
        raise NotNow(f"unreachable at {address}", hint)  # its router may be starting
    message = f"{address} is not the address that this join comes from, and the coordinator dials no other"
    hint = "leave --advertise out, or ask for the coordinator to be started with --dial-back and that network"
    raise Refused(message, hint)


async def _resolved(host: str, port: int, patience: float) -> list[Address]:
    """The addresses of a host, each once; empty where it does not resolve in time."""
    asked = asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    try:
        found = await asyncio.wait_for(asked, patience)
    except (OSError, UnicodeError, asyncio.TimeoutError):
        return []
    addresses = (canonical(str(where[0])) for *_, where in found)
    return list(dict.fromkeys(one for one in addresses if one is not None))
