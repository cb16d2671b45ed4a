"""How much main memory is available: on the machine, and within the limits of the containers around this process.

Containers are cgroups, version 1 or 2, one inside the other; each may have a limit, and the tightest counts. The usage
of a cgroup includes the page cache, which the kernel reclaims when memory is asked for; it counts as free here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NO_LIMIT = 1 << 60
"""Version 1 writes the largest number of pages that it can count where there is no limit."""


@dataclass(frozen=True)
class _Version:
    """File names and keys of one version of cgroups."""

    limits: tuple[str, ...]
    used: str
    prefix: str


_VERSIONS = {
    "cgroup2": _Version(("memory.max", "memory.high"), "memory.current", ""),
    "cgroup": _Version(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_"),
}
_RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")


def available_memory(root: Path = Path("/")) -> int:
    """Bytes of main memory that can be used without swapping, and without the kernel ending a container for it.

    ``root``: the folder below which /proc and the cgroup mounts lie.
    """
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, StopIteration, ValueError), (root / "proc/meminfo").open() as lines:
        free = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    return max(0, min([free, *(_free_within(folder, version) for folder, version in _cgroups(root))]))


def memory_at_most(root: Path = Path("/")) -> int:
    """Bytes of main memory that processes here may ever have: the machine's, or the tightest limit around."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(_limit(folder, version) for folder, version in _cgroups(root))])


def _limit(folder: Path, version: _Version) -> int:
    """Bytes that one cgroup may have; a very large number where it has no limit."""
    limits = [_number(folder / name) for name in version.limits]
    return min((found for found in limits if found is not None and found < _NO_LIMIT), default=_NO_LIMIT)


def _free_within(folder: Path, version: _Version) -> int:
    """Bytes below the limit of one cgroup; a very large number where it has none."""
    limit, used = _limit(folder, version), _number(folder / version.used)
    if limit >= _NO_LIMIT or used is None:
        return _NO_LIMIT
    given_back = 0
    with contextlib.suppress(OSError, ValueError), (folder / "memory.stat").open() as lines:
        stat = {name: int(value) for name, value in (line.split() for line in lines)}
        given_back = sum(stat.get(version.prefix + name, stat.get(name, 0)) for name in _RECLAIMABLE)
    return limit - max(0, used - given_back)


def _cgroups(root: Path) -> Iterator[tuple[Path, _Version]]:
    """The cgroups of this process and all their ancestors, as far as the mounts show them."""
    try:
        own = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:  # not Linux
        return
    paths = {}
    for line in own:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            paths["cgroup2"] = path
        elif "memory" in controllers.split(","):
            paths["cgroup"] = path
    for line in mounts:
        before, _, after = line.partition(" - ")
        kind, _, options = [*after.split(), "", "", ""][:3]
        if kind not in paths or (kind == "cgroup" and "memory" not in options.split(",")):
            continue
        top, point = before.split()[3:5]
        mounted = root / point.lstrip("/")
        # In a container the mount may begin at the container's own cgroup, or the path may lie outside of the mount.
        below = os.path.relpath(paths[kind], top) if (paths[kind] + "/").startswith(top.rstrip("/") + "/") else "."
        here = mounted / below
        for folder in (here, *here.parents):
            if folder.is_dir():
                yield folder, _VERSIONS[kind]
            if folder == mounted:
                break


def _number(path: Path) -> int | None:
    """The number in a file; None without one ("max", or no such file)."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
