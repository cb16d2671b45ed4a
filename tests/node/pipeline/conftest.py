import pytest

from farflung.node.pipeline.island import Island


@pytest.fixture(scope="module")
def island():
    """Two ranks on the CPU, which a module's tests share."""
    with Island("cpu", 2) as made:
        made.measure()
        yield made
