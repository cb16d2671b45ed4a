"""Where the regions of a picture lie: as on a map where all of them are known, else side by side or in a circle."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

KNOWN = {
    "oregon": (45.8, -119.7), "california": (37.4, -122.0), "losangeles": (34.1, -118.2), "seattle": (47.6, -122.3),
    "iowa": (41.3, -95.9), "dallas": (32.8, -96.8), "texas": (31.0, -99.0), "chicago": (41.9, -87.6),
    "ohio": (40.0, -83.0), "virginia": (38.9, -77.5), "newyork": (40.7, -74.0), "montreal": (45.5, -73.6),
    "toronto": (43.7, -79.4), "saopaulo": (-23.5, -46.6), "ireland": (53.3, -6.3), "london": (51.5, -0.1),
    "paris": (48.9, 2.4), "amsterdam": (52.4, 4.9), "frankfurt": (50.1, 8.7), "zurich": (47.4, 8.5),
    "berlin": (52.5, 13.4), "milan": (45.5, 9.2), "stockholm": (59.3, 18.1), "helsinki": (60.2, 24.9),
    "warsaw": (52.2, 21.0), "madrid": (40.4, -3.7), "telaviv": (32.1, 34.8), "capetown": (-33.9, 18.4),
    "mumbai": (19.1, 72.9), "singapore": (1.3, 103.8), "hongkong": (22.3, 114.2), "taiwan": (25.0, 121.5),
    "seoul": (37.6, 127.0), "osaka": (34.7, 135.5), "tokyo": (35.7, 139.7), "sydney": (-33.9, 151.2),
}  # fmt: skip
"""Degrees north and east of the places whose names usually occur in cluster files."""
Point = tuple[float, float]


def centres(sizes: Mapping[str, float], width: float, top: float) -> tuple[dict[str, Point], float]:
    """(region -> the middle of its disc, the lowest edge). sizes: pixels, radius of each disc with the text around
    it."""
    names = list(sizes)
    known = [KNOWN.get(re.sub(r"[^a-z]", "", name.lower())) for name in names]
    found = [one for one in known if one is not None]
    largest = max(sizes.values())
    if len(names) == 1:
        at = [(width / 2, top + largest)]
    elif len(found) == len(names) > 2:
        at = [(width / 2 + x, y) for x, y in _on_the_map(found, width - 2 * largest, 380.0)]
    elif len(names) <= 3:
        at = [(width * (number + 1) / (len(names) + 1), 0.0) for number in range(len(names))]
    else:
        turns = [2 * math.pi * number / len(names) - math.pi for number in range(len(names))]
        reach = max(270.0, largest * len(names) / math.pi)
        at = [(width / 2 + min(1.5 * reach, width / 2 - largest) * math.cos(t), reach * math.sin(t)) for t in turns]
    at = _apart(at, list(sizes.values()))
    at = [(min(max(x, size), width - size), y) for (x, y), size in zip(at, sizes.values(), strict=True)]
    high = min(y - size for (_, y), size in zip(at, sizes.values(), strict=True))
    moved = {name: (x, y - high + top) for name, (x, y) in zip(names, at, strict=True)}
    return moved, max(moved[name][1] + sizes[name] for name in names)


def _on_the_map(places: Sequence[Point], width: float, height: float) -> list[Point]:
    """Longitude to the right, latitude upwards, scaled so that the places fill the picture; the Pacific is where the
    map is cut."""
    norths, easts = [north for north, _ in places], [east for _, east in places]
    wide, tall = max(max(easts) - min(easts), 1.0), max(max(norths) - min(norths), 1.0)
    across = min(width / wide, 3 * height / tall)
    down = min(1.3 * across, height / tall)
    middle = (max(easts) + min(easts)) / 2
    return [(across * (east - middle), down * -north) for north, east in places]


def _apart(at: list[Point], sizes: Sequence[float]) -> list[Point]:
    """The points, moved apart until no two discs overlap, or until the loop has run its fixed number of times."""
    points = [list(point) for point in at]
    for _ in range(200):
        moved = False
        for one in range(len(points)):
            for two in range(one):
                dx, dy = points[one][0] - points[two][0], points[one][1] - points[two][1]
                far, wanted = math.hypot(dx, dy), sizes[one] + sizes[two] + 10.0
                if far < wanted:
                    moved = True
                    ux, uy = (dx / far, dy / far) if far > 1e-9 else (1.0, 0.0)
                    push = (wanted - far) / 2
                    for point, sign in ((points[one], 1.0), (points[two], -1.0)):
                        point[0] += sign * ux * push
                        point[1] += sign * uy * push
        if not moved:
            break
    return [(x, y) for x, y in points]
