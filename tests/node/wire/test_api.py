"""The seam that the real wire and the loopback both fill."""

import doctest
import inspect

import pytest

from farflung.node.wire import api
from farflung.node.wire.client import ProcessWire
from farflung.testing.wires import LoopbackWire


def test_the_worked_example_runs() -> None:
    found = doctest.testmod(api)
    assert found.attempted > 10 and not found.failed


@pytest.mark.parametrize("wire", [ProcessWire, LoopbackWire])
def test_calls_have_the_parameters_of_the_protocol(wire: type) -> None:
    """What the type checker says of ``Trainer(wire, ...)``, for whoever runs no type checker."""
    for name, promised in inspect.getmembers(api.Wire, inspect.isfunction):
        if name.startswith("_"):
            continue
        wanted, has = inspect.signature(promised).parameters, inspect.signature(getattr(wire, name)).parameters
        assert list(has)[: len(wanted)] == list(wanted), name
        assert all(has[one].default == wanted[one].default for one in wanted), name
