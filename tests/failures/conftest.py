"""A farm of real processes for each test that wants one."""

import contextlib

import pytest
from farm import Farm


@pytest.fixture
def farm(nursery, tmp_path):
    """``farm(table={...})``: a run whose job has these values; everything is killed at the end of the test."""
    with contextlib.ExitStack() as stack:
        yield lambda **changes: stack.enter_context(Farm(tmp_path, nursery, **changes))
