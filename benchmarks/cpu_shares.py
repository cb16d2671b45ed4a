"""Hosts of an emulated WAN that compute unequally: a control group for each, with a part of a core.

Groups of cgroups, of either version. A trainer puts itself into its group when it measures its device: by then it has
loaded torch, which a part of a core takes a minute for. `JOIN` is run before anything else of its process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 10_000
"""A tenth of what is usual, so that a measurement of a moment sees the part and not a whole core."""
VARIABLE = "FARFLUNG_BENCH_GROUPS"
JOIN = """\
import os
import sys

groups, words = os.environ.get("FARFLUNG_BENCH_GROUPS"), sys.orig_argv


def enter(name):
    with open(os.path.join(groups, name, "cgroup.procs"), "w") as file:
        file.write(str(os.getpid()))


if groups and any(word.startswith("farflung.node.io") for word in words):  # what carries bytes is no part of computing
    enter("rest")
elif groups and "join" in words and "wan" not in words and "--name" in words:
    from farflung.node.device import probe

    rate = probe.matmul_rate

    def matmul_rate(*args):
        enter(words[words.index("--name") + 1])
        return rate(*args)

    probe.matmul_rate = matmul_rate
"""
"""A sitecustomize module: a node's trainer enters the group of its name, its I/O process that of the rest."""


def possible() -> bool:
    """Whether this machine lets us make groups with parts of a core."""
    own = _parent() / f"farflung-{os.getpid()}"
    try:
        own.mkdir()
        found = (own / "cpu.cfs_quota_us").exists() or (own / "cpu.max").exists()
        own.rmdir()
    except OSError:
        return False
    return found


@contextlib.contextmanager
def groups(shares: Mapping[str, float]) -> Iterator[None]:
    """Groups with so much of a core each by name, in the environment for `JOIN`; gone after, when nobody is in them."""
    own = _parent() / f"farflung-{os.getpid()}"
    own.mkdir()
    if (own / "cgroup.subtree_control").exists():
        (own / "cgroup.subtree_control").write_text("+cpu")
    made = []
    try:
        for name, share in {**shares, "rest": 0.0}.items():
            group = own / name
            group.mkdir()
            made.append(group)
            quota = round(share * PERIOD_US) or -1
            if (group / "cpu.max").exists():
                (group / "cpu.max").write_text(f"{'max' if quota < 0 else quota} {PERIOD_US}")
            else:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
        os.environ[VARIABLE] = str(own)
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        for group in [*made, own]:
            with contextlib.suppress(OSError):  # somebody is still in it: it stays, and holds nobody back
                group.rmdir()


def _parent() -> Path:
    return ROOT / "cpu" if (ROOT / "cpu").is_dir() else ROOT  # version 1, or 2
