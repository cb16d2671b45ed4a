"""Memory of containers: emulated cgroup files of both versions, nested, without a limit, and full of page cache."""

import pytest

from farflung.node.device.memory import available_memory, memory_at_most

GB = 10**9
MACHINE = 64 * GB


def write(root, files):
    for name, text in {"proc/meminfo": f"MemFree: 1 kB\nMemAvailable: {MACHINE // 1024} kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def v2(where, limit, used, cache=0, **more):
    """The files of a cgroup of version 2 at ``where``."""
    stat = f"anon 5\nfile {cache}\nactive_file {cache // 4}\ninactive_file {cache - cache // 4}\nslab_reclaimable 0"
    files = {"memory.max": limit, "memory.current": used, "memory.stat": stat, **more}
    return {f"{where}/{name}": text for name, text in files.items()}


def v1(where, limit, used, cache=0):
    stat = f"cache {cache}\ninactive_file 7\ntotal_inactive_file {cache}\ntotal_active_file 0"
    files = {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": used, "memory.stat": stat}
    return {f"{where}/{name}": text for name, text in files.items()}


def process(path, version=2, top="/"):
    """What /proc says of a process in the cgroup ``path``; the mount begins at ``top``."""
    if version == 2:
        mount = f"30 23 0:26 {top} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw"
        return {"proc/self/cgroup": f"0::{path}", "proc/self/mountinfo": mount}
    mounts = (
        "31 23 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n"
        f"32 31 0:29 {top} /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        f"33 31 0:30 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "34 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
    )
    return {
        "proc/self/cgroup": f"4:memory:{path}\n3:cpu,cpuacct:/elsewhere\n0::/",
        "proc/self/mountinfo": mounts,
    }


TOP, OLD = "sys/fs/cgroup", "sys/fs/cgroup/memory"
NONE_1 = 9223372036854771712
CASES = {
    "no cgroups": ({}, MACHINE),
    "page cache is free": ({**process("/"), **v2(TOP, 8_600_000_000, 8_590_100_000, 8 * GB)}, 8_009_900_000),
    "max": ({**process("/"), **v2(TOP, "max", 5 * GB)}, MACHINE),
    "high": ({**process("/"), **v2(TOP, "max", GB, **{"memory.high": 3 * GB})}, 2 * GB),
    "the one around is tighter": (
        {**process("/a/b"), **v2(f"{TOP}/a", 4 * GB, 3 * GB), **v2(f"{TOP}/a/b", 6 * GB, GB), **v2(TOP, "max", 0)},
        GB,
    ),
    "over its limit": ({**process("/"), **v2(TOP, GB, 2 * GB)}, 0),
    "more than the machine": ({**process("/"), **v2(TOP, 900 * GB, 0)}, MACHINE),
    "version 1": ({**process("/job", 1), **v1(f"{OLD}/job", 2_100_000_000, 100_000_000)}, 2 * GB),
    "version 1, cache": ({**process("/job", 1), **v1(f"{OLD}/job", 2 * GB, 2 * GB, GB)}, GB),
    "version 1, no limit": ({**process("/job", 1), **v1(f"{OLD}/job", NONE_1, GB), **v1(OLD, NONE_1, GB)}, MACHINE),
    "version 1, nested": (
        {**process("/a/b", 1), **v1(f"{OLD}/a", 3 * GB, GB), **v1(f"{OLD}/a/b", NONE_1, GB)},
        2 * GB,
    ),
    "version 1, docker": ({**process("/docker/x", 1, "/docker/x"), **v1(OLD, 3 * GB, GB)}, 2 * GB),
    "a path from outside": ({**process("/kubepods/x"), **v2(TOP, 3 * GB, GB)}, 2 * GB),
    "a path above the mount": ({**process("/../other"), **v2(TOP, 3 * GB, GB)}, 2 * GB),
}


@pytest.mark.parametrize(("files", "bytes_"), CASES.values(), ids=CASES)
def test_the_tightest_limit_counts_and_page_cache_is_free(tmp_path, files, bytes_):
    write(tmp_path, files)
    assert available_memory(tmp_path) == bytes_


def test_what_may_be_had_at_most_is_the_tightest_limit(tmp_path):
    machine = memory_at_most(tmp_path)
    write(tmp_path, {**process("/a/b"), **v2(f"{TOP}/a", 1 << 20, 5), **v2(f"{TOP}/a/b", "max", 5)})
    assert memory_at_most(tmp_path) == 1 << 20 < machine
    write(tmp_path / "old", {**process("/job", 1), **v1(f"{OLD}/job", 1 << 21, 5), **v1(OLD, NONE_1, 5)})
    assert memory_at_most(tmp_path / "old") == 1 << 21
    write(tmp_path / "none", {**process("/"), **v2(TOP, "max", 5)})
    assert memory_at_most(tmp_path / "none") == machine


def test_this_machine():
    assert 1 << 26 < available_memory() < 1 << 60
