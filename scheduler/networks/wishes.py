"""What a person asks of a plan in money and time, read from text: prices, a deadline, a number of tokens."""

from __future__ import annotations

import re
from dataclasses import replace

from ..errors import PlanError
from .network import Network

_COUNT = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)([kmbt]?)", re.IGNORECASE)
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_TIME = re.compile(r"(\d+(?:\.\d+)?)(h|d|w)", re.IGNORECASE)
_TIMES = {"h": 3600.0, "d": 86400.0, "w": 604800.0}
MOST_DOLLARS = 1e6
"""Dollars an hour of one machine, at most: a larger number is a typing error."""


def tokens_of(text: str) -> float:
    """Tokens from 5000, 300M, 10B, 1.5T. PlanError where it is no such number."""
    found = _COUNT.fullmatch(text.strip())
    count = float(found[1]) * _COUNTS[found[2].lower()] if found else 0.0
    if not 0 < count < 1e18:
        raise PlanError(f"{text!r} is not a number of tokens, like 300M, 10B or 1.5T")
    return count


def seconds_of(text: str) -> float:
    """Seconds from 36h, 30d, 2w. PlanError where it is no such time."""
    found = _TIME.fullmatch(text.strip())
    if found is None or not 0 < float(found[1]) < 1e9:
        raise PlanError(f"{text!r} is not a time, like 36h, 30d or 2w")
    return float(found[1]) * _TIMES[found[2].lower()]


def speed_for(tokens: float | None, deadline: str) -> float:
    """Tokens a second that are needed to train `tokens` within the time `deadline` (as "36h"). PlanError where tokens
    is None."""
    seconds = seconds_of(deadline)
    if tokens is None:
        raise PlanError(
            "a deadline needs to know for how many tokens: give --tokens 10B, or a job whose [run] has steps"
        )
    return tokens / seconds


def with_prices(network: Network, text: str) -> Network:
    """The network with the prices of `NAME=DOLLARS,...` in dollars an hour. NAME is a device, a place, or a card in the
    name of a device, as 4090 in home/0-4090; a device's own name counts before its place, and its place before its
    card. PlanError for other text.
    """
    wished: dict[str, float] = {}
    for word in text.replace(",", " ").split():
        name, equal, dollars = word.partition("=")
        if not name or not equal or not re.fullmatch(r"\d+(\.\d+)?", dollars) or float(dollars) > MOST_DOLLARS:
            raise PlanError(f"{word!r} is not NAME=DOLLARS (an hour), like 4090=0.3,home=0")
        wished[name.lower()] = float(dollars)
    used: set[str] = set()
    devices = []
    for device in network.devices:
        card = device.name.rpartition("/")[2].partition("-")[2]
        names = [name.lower() for name in (device.name, device.region, card) if name.lower() in wished]
        used.update(names)
        devices.append(replace(device, price=wished[names[0]]) if names else device)
    unknown = sorted(set(wished) - used)
    if unknown:
        raise PlanError(f"a price is given for {unknown[0]!r}, which is no device, place or card of the cluster")
    return network.with_devices(devices)
