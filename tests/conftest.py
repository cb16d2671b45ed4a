"""For all tests."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import IN_ITS_PLACE, WHERE
from hypothesis import settings
from quick_start import Nursery, NurseryProcess

# Before torch is loaded: several processes of tests share the cores, and torch's threads, which wait for each other by
# turning in a circle, take several times the processor time of one thread for the same small tensors.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests assert results, not seconds: what is quick alone takes long on a machine that is busy. And the quick suite has
# the same examples in every run: what fails fails again, and what passes on one machine passes on the next. New
# examples are looked for with --hypothesis-profile=explore, as `make slow` does.
settings.register_profile("explore", deadline=None)
settings.register_profile("farflung", deadline=None, derandomize=True)
settings.load_profile("farflung")

# A shell's background job ignores Ctrl-C, and hands that on to processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


WAITING = {"cli", "failures", "recipes", "run", "serve", "web"}
"""Folders whose tests wait for processes and clocks most of their time; the others compute."""

LONGEST = {
    *("test_fast.py", "test_zoo.py", "test_kernels.py", "test_follow.py", "test_equality.py", "test_faults.py"),
    *("test_handover.py", "test_views.py", "test_nodes_die.py", "test_joiners.py", "test_library.py", "test_kills.py"),
}
"""Files that take long. One that began last would leave the other workers idle."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that wait beside files that compute from the beginning to the end, so that processors are neither idle nor
    wanted by all at once; of both kinds the longest first."""
    kinds: tuple[dict[Path, None], dict[Path, None]] = {}, {}
    for item in sorted(items, key=lambda item: item.path.name not in LONGEST):
        kinds[bool(WAITING & set(item.path.parts))][item.path] = None
    place = {path: at / len(files) for files in kinds for at, path in enumerate(files)}
    items.sort(key=lambda item: place[item.path])


SHARED_NURSERY = "FARM_SHARED_NURSERY"
"""The environment variable with the socket of the nursery that all workers of pytest-xdist have."""


def pytest_configure(config: pytest.Config) -> None:
    """Start it before the workers, so that it has loaded its libraries when they ask."""
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        shared = NurseryProcess()
        os.environ[SHARED_NURSERY] = shared.socket
        config.add_cleanup(shared.close)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Starts farflung's commands quickly; one for all tests of this process."""
    with contextlib.closing(Nursery(os.environ.get(SHARED_NURSERY, ""))) as made:
        yield made


@pytest.fixture
def forks(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local run that is started in this process has forks of the nursery as its processes."""
    from farflung.cli.local import children

    monkeypatch.setenv(WHERE, nursery.socket)
    monkeypatch.setattr(children, "subprocess", IN_ITS_PLACE)


@pytest.fixture
def nobody_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds wait for everybody. Their deadline is a quarter of a second and what is usual: on a busy machine a thread
    of a hub is held up for longer, its contribution goes into the next round, and losses are not those of others."""
    from farflung.node.rounds.protocol import standing

    monkeypatch.setattr(standing, "ROUNDS_WITHOUT_DEADLINE", 1 << 30)
