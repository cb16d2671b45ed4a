"""A cluster in words: ``8xH100@oregon 4x4090@home:200mbit/20mbit`` instead of a file. ``2x8x4090@rack`` is two boxes of
eight cards, each one node.

What a card computes is 40 % of what its data sheet says for dense bf16 (fp16 where it has no bf16), which is what good
training code reaches; a run measures its own. Prices are usual ones of rented cards in 2025, for comparisons; for other
prices write a cluster file.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

import numpy

from ..errors import PlanError
from .devices import MOST_CARDS, Device
from .network import Network

REACHED = 0.4
LAN_BPS, LAN_S = 10e9, 0.0005
"""Between two devices of one place."""
FAR_BPS, FAR_S = 1e9, 0.04
"""Between two places whose lines are not said."""


@dataclass(frozen=True)
class Card:
    """peak: dense Tflop/s of the data sheet. memory: GB. price: dollars an hour."""

    peak: float
    memory: float
    price: float


CARDS: dict[str, Card] = {
    "B200": Card(2250, 180, 5.0),
    "H200": Card(989, 141, 3.5),
    "H100": Card(989, 80, 2.5),
    "A100": Card(312, 80, 1.5),
    "A100-40": Card(312, 40, 1.2),
    "L40S": Card(362, 48, 1.0),
    "L4": Card(121, 24, 0.5),
    "A10": Card(125, 24, 0.6),
    "A6000": Card(155, 48, 0.5),
    "V100": Card(125, 16, 0.5),
    "T4": Card(65, 16, 0.25),
    "5090": Card(209, 32, 0.7),
    "4090": Card(165, 24, 0.4),
    "3090": Card(71, 24, 0.22),
    "3080": Card(60, 10, 0.15),
}
"""Name -> card."""

_WORD = re.compile(r"(?:(\d+)x)?(?:(\d+)x)?([A-Za-z0-9-]+)@([\w.-]+?)(?::([^:]+))?")
_RATE = re.compile(r"(\d+(?:\.\d+)?)(k|m|g)bit", re.IGNORECASE)
_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9}


def in_words(text: str) -> bool:
    """Whether a cluster is given in words and not as a file's name."""
    return bool(text.split()) and all(_WORD.fullmatch(word) for word in text.split())


def cluster_of(text: str) -> Network:
    """The network that the words describe: COUNTxCARD@PLACE, and after a colon the place's line, DOWN/UP or one rate
    for both directions.

    All devices of a place share its line. PlanError names the word that is wrong.
    """
    devices: list[Device] = []
    up: dict[str, float] = {}
    down: dict[str, float] = {}
    for word in text.split():
        found = _WORD.fullmatch(word)
        if found is None:
            raise PlanError(f"{word!r} is not COUNTxCARD@PLACE:DOWN/UP, as in 4x4090@home:200mbit/20mbit")
        count, cards, name, place, line = found.groups()
        card = CARDS.get(name.upper())
        if card is None:
            near = difflib.get_close_matches(name.upper(), CARDS, 1, 0.4)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise PlanError(f"{word!r}: no card is called {name!r}{meant} (cards: {', '.join(CARDS)})")
        if not 1 <= int(count or 1) <= 10_000:
            raise PlanError(f"{word!r}: a count is from 1 to 10000")
        if line:
            rates = [_rate(part, word) for part in line.split("/")]
            if len(rates) > 2:
                raise PlanError(f"{word!r}: a line is DOWN/UP, as in 200mbit/20mbit")
            down[place], up[place] = rates[0], rates[-1]
        ranks = int(cards or 1)
        if not 1 <= ranks <= MOST_CARDS:
            raise PlanError(f"{word!r}: a box has 1 to {MOST_CARDS} cards")
        shown, each = (name, card.peak * REACHED) if ranks == 1 else (f"{ranks}x{name}", ranks * card.peak * REACHED)
        first = sum(device.region == place for device in devices)
        devices += [
            Device(f"{place}/{at}-{shown}", place, each, card.memory * 1e9, price=ranks * card.price, ranks=ranks)
            for at in range(first, first + int(count or 1))
        ]
    home = numpy.array([device.region for device in devices])
    near = home[:, None] == home[None, :]
    bandwidth = numpy.where(near, LAN_BPS, FAR_BPS)
    for place, rate in up.items():
        bandwidth[(home == place)[:, None] & ~near] = rate
    for place, rate in down.items():
        into = (home == place)[None, :] & ~near
        bandwidth[into] = numpy.minimum(bandwidth[into], rate)
    latency = numpy.where(near, LAN_S, FAR_S)
    return Network(devices, latency, bandwidth, site_upload=up, site_download=down)


def _rate(text: str, word: str) -> float:
    found = _RATE.fullmatch(text)
    if found is None or float(found[1]) == 0:
        raise PlanError(f"{word!r}: {text!r} is not a rate, like 200mbit, 1.5gbit or 500kbit")
    return float(found[1]) * _UNITS[found[2].lower()]
