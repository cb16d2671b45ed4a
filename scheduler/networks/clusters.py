"""Cluster files: regions, the links between them, and optionally each device. JSON or TOML; one clear error each."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from ..errors import PlanError
from .blocks import Blocks
from .devices import DEFAULT_TFLOPS, MOST_CARDS, Device, Matrix
from .files import load_json

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MOST = 1e9
"""The largest number that a file may have: a larger one is a typing error or in another unit."""
CLUSTER_KEYS = (
    "regions",
    "devices_per_region",
    "devices",
    "device_order",
    "latency_ms",
    "bandwidth_gbps",
    "site_upload_gbps",
    "site_download_gbps",
    "source",
    "note",
)
DEVICE_KEYS = (
    "name",
    "region",
    "tflops",
    "memory_gb",
    "cards",
    "main_memory_gb",
    "upload_gbps",
    "download_gbps",
    "price_per_hour",
    "evictions_per_hour",
)


class Cluster(NamedTuple):
    """What a cluster file says: the arguments of a Network (its docstring has shapes and units)."""

    devices: list[Device]
    latency: Blocks
    bandwidth: Blocks
    site_upload: dict[str, float]
    site_download: dict[str, float]


def read_cluster(path: Path) -> tuple[Cluster, str]:
    """The cluster of a file, and the file's name for messages.

    `FILE:CASE` (or `FILE#CASE`) picks one of several clusters in a file.
    """
    name, _, case = path.name.replace("#", ":", 1).partition(":")
    file = path.parent / name
    if file.suffix.lower() == ".toml":
        try:
            content: Any = tomllib.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise PlanError(f"can't read {file}: {error.strerror}") from error
        except ValueError as error:
            raise PlanError(f"{file} is not TOML: {error}") from error
    else:
        content = load_json(file)
    if not isinstance(content, Mapping):
        raise PlanError(f"{file}: a cluster is a table with regions, latency_ms and bandwidth_gbps")
    if case:
        if not isinstance(content.get(case), Mapping):
            raise PlanError(f"{file} has no cluster {case!r}")
        content = content[case]
    elif "regions" not in content:
        cases = [key for key, value in content.items() if isinstance(value, Mapping) and "regions" in value]
        if cases:
            raise PlanError(f"{file} has several clusters: write {file}:{cases[0]} or another of {', '.join(cases)}")
    return parse_cluster(content, str(file)), str(file)


def parse_cluster(cluster: Mapping[str, Any], where: str) -> Cluster:
    """The cluster of a file's content; `where` is named in errors."""
    for key in cluster:
        if key not in CLUSTER_KEYS:
            near = difflib.get_close_matches(key, CLUSTER_KEYS, 1)
            meant = f": did you mean {near[0]!r}?" if near else f": keys are {', '.join(CLUSTER_KEYS)}"
            raise PlanError(f"{where}: unknown key {key!r}{meant}")
    regions = cluster.get("regions")
    if not isinstance(regions, list) or not regions or not all(isinstance(region, str) for region in regions):
        raise PlanError(f"{where}: regions must be a list of names")
    if len(set(regions)) != len(regions):
        raise PlanError(f"{where}: a region is named twice")
    devices = _devices(cluster, regions, where)
    counts = [sum(device.region == region for device in devices) for region in regions]
    latency = _matrix(cluster, "latency_ms", regions, counts, where) / 1e3
    bandwidth = _matrix(cluster, "bandwidth_gbps", regions, counts, where) * 1e9
    home = numpy.array([regions.index(device.region) for device in devices])
    return Cluster(
        devices,
        Blocks(home, latency, 0.0),
        Blocks(home, bandwidth, math.inf),
        site_upload=_sites(cluster, "site_upload_gbps", regions, where),
        site_download=_sites(cluster, "site_download_gbps", regions, where),
    )


def _devices(cluster: Mapping[str, Any], regions: list[str], where: str) -> list[Device]:
    listed = cluster.get("devices", [])
    wanted = cluster.get("devices_per_region", {})
    if not isinstance(wanted, Mapping):
        raise PlanError(f"{where}: devices_per_region must be a table from region to a number")
    for region, count in wanted.items():
        if region not in regions:
            raise PlanError(f"{where}: devices_per_region names the unknown region {region!r}: regions are {regions}")
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise PlanError(f"{where}: devices_per_region of {region!r} must be a whole number, not {count!r}")
    given: list[Device] = []
    if isinstance(listed, list):
        given = [_device(entry, position, regions, where) for position, entry in enumerate(listed)]
        for region, count in wanted.items():
            named = sum(device.region == region for device in given)
            if named > count:
                raise PlanError(f"{where}: {named} devices are listed in {region!r}: devices_per_region says {count}")
    elif isinstance(listed, bool) or not isinstance(listed, int):
        raise PlanError(f"{where}: devices must be a list of tables")
    elif listed != sum(wanted.values()):
        raise PlanError(f"{where}: devices says {listed}: devices_per_region adds up to {sum(wanted.values())}")
    order = cluster.get("device_order")
    if order is None:
        order = [region for region in regions for _ in range(int(wanted.get(region, 0)))]
    elif any(order.count(region) != count for region, count in wanted.items()) or len(order) != sum(wanted.values()):
        raise PlanError(f"{where}: device_order and devices_per_region disagree")
    waiting = {region: [device for device in given if device.region == region] for region in regions}
    taken = dict.fromkeys(regions, 0)
    devices: list[Device] = []
    for region in order:
        index = taken[region]
        taken[region] += 1
        mine = waiting[region]
        devices.append(mine[index] if index < len(mine) else Device(f"{region}/{index}", region))
    # Regions without a number in devices_per_region have the devices of the list, in its order.
    devices += [device for device in given if device.region not in wanted]
    if not devices:
        raise PlanError(f"{where}: there is no device: give devices_per_region or devices")
    return devices


def _number(value: Any) -> bool:
    """Whether the value is a finite number from 0 to MOST: a rate, a latency, a speed, a size or a price."""
    return not isinstance(value, bool) and isinstance(value, (int, float)) and 0 <= value <= MOST


def _too_much(value: Any) -> str:
    large = isinstance(value, (int, float)) and value > MOST
    return f" and at most {MOST:g}, not {value!r}" if large else f", not {value!r}"


def _device(entry: Any, position: int, regions: list[str], where: str) -> Device:
    if not isinstance(entry, Mapping):
        raise PlanError(f"{where}: device {position} must be a table with a region")
    unknown = [key for key in entry if key not in DEVICE_KEYS]
    if unknown:
        raise PlanError(f"{where}: device {position} has the unknown key {unknown[0]!r}: keys are {list(DEVICE_KEYS)}")
    region = entry.get("region")
    if region not in regions:
        raise PlanError(f"{where}: device {position} is in the unknown region {region!r}: regions are {regions}")

    def number(key: str, unit: float) -> float | None:
        value = entry.get(key)
        if value is None:
            return None
        if not _number(value):
            raise PlanError(f"{where}: {key} of device {position} must be a number of at least 0{_too_much(value)}")
        return float(value) * unit

    tflops = number("tflops", 1.0)
    cards = entry.get("cards", 1)
    if isinstance(cards, bool) or not isinstance(cards, int) or not 1 <= cards <= MOST_CARDS:
        raise PlanError(f"{where}: cards of device {position} must be a whole number from 1 to {MOST_CARDS}")
    return Device(
        name=str(entry.get("name", f"{region}/{position}")),
        region=region,
        tflops=DEFAULT_TFLOPS if tflops is None else tflops,
        memory_bytes=number("memory_gb", 1e9),
        upload=number("upload_gbps", 1e9),
        download=number("download_gbps", 1e9),
        price=number("price_per_hour", 1.0),
        evictions=number("evictions_per_hour", 1.0) or 0.0,
        ranks=cards,
        main_bytes=number("main_memory_gb", 1e9),
    )


def _matrix(cluster: Mapping[str, Any], key: str, regions: list[str], counts: list[int], where: str) -> Matrix:
    rows = cluster.get(key)
    size = len(regions)
    if not isinstance(rows, list) or len(rows) != size or not all(isinstance(r, list) and len(r) == size for r in rows):
        found = f"{len(rows)} rows" if isinstance(rows, list) else "none"
        raise PlanError(
            f"{where}: {key} must be {size} x {size}, one row and one column for each region (found {found})"
        )
    matrix = numpy.zeros((size, size))
    for row in range(size):
        for column in range(size):
            value = rows[row][column]
            if value is None and row == column and counts[row] < 2:
                continue
            if not _number(value):
                pair = f"{regions[row]!r} to {regions[column]!r}"
                raise PlanError(f"{where}: {key} from {pair} must be a number of at least 0{_too_much(value)}")
            matrix[row, column] = value
    return matrix


def _sites(cluster: Mapping[str, Any], key: str, regions: list[str], where: str) -> dict[str, float]:
    result = {}
    given = cluster.get(key, {})
    if not isinstance(given, Mapping):
        raise PlanError(f'{where}: {key} must be a table, {{"{regions[0]}": 1}}, not {given!r}')
    for region, value in given.items():
        if region not in regions:
            raise PlanError(f"{where}: {key} names the unknown region {region!r}: regions are {regions}")
        if not _number(value) or value == 0:
            raise PlanError(f"{where}: {key} of {region!r} must be a number above 0, up to {MOST:g}, not {value!r}")
        result[region] = value * 1e9
    return result
