"""What the tests of real emulations share."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from farflung.deploy.wan import build, files, lab
from farflung.deploy.wan.lab import Lab

_number = itertools.count()


@pytest.fixture
def wan() -> Iterator[Callable[..., Lab]]:
    """`wan(tables, backend="relay")` builds a lab of this test's own; all of them are gone after the test."""
    why = build.why_not()
    if why:
        pytest.skip(why)
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        pytest.skip("the relay needs /dev/net/tun")
    made: list[str] = []

    def make(tables: dict[str, Any], backend: str = "relay") -> Lab:
        name = f"t{os.getpid()}-{next(_number)}"
        topology = files.parse({**tables, "name": name}, name, "a test")
        made.append(name)
        return build.up(topology, backend)

    yield make
    for name in made:
        if name in lab.names():
            build.down(name)
