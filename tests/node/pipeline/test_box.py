"""Bytes that one process of an island hands to another."""

import os

from farflung.node.pipeline.inside.box import KEPT, Box


def test_what_one_end_writes_the_other_reads():
    here = Box(KEPT + (1 << 20))
    there = Box(here.size, os.dup(here.file))
    first = here.put([b"two ", b"", bytearray(b"pieces")])
    second = here.put(memoryview(b"one"))
    placed = here.place(((b"as ", memoryview(b"made")), (b"",)))
    assert there.get(first) == b"two pieces" and there.get(second) == b"one"
    assert there.get(here.where(placed)) == b"as made" and there.get(here.where(())) == b"" == there.get(here.put(b""))
    here.clear()
    assert there.get(here.put(b"anew")) == b"anew" and there.get(first)[4:] == b"pieces"


def test_a_cleared_box_gives_memory_back():
    here = Box(KEPT + (4 << 20))
    there = Box(here.size, os.dup(here.file))
    large = here.put([b"x" * (KEPT + 4096), b"y" * (1 << 20)])
    assert os.stat(f"/proc/self/fd/{here.file}").st_blocks * 512 >= sum(large)
    here.clear()
    assert os.stat(f"/proc/self/fd/{here.file}").st_blocks * 512 <= KEPT
    assert there.get(here.put(b"z")) == b"z"
