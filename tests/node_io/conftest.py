"""Certificates, wires on loopback, and checks that nothing is left behind."""

import contextlib
import gc
import os
import time
from pathlib import Path

import pytest
from wires import Nodes, descriptors

from farflung.coordinator.trust.authority import load_authority
from farflung.node.device import identity

GRPC_KEEPS = 2
"""Sockets by which gRPC wakes its event loop; it keeps them for the life of the process."""


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    """A run's CA, as the coordinator makes it."""
    return load_authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="session")
def certificates(authority):
    """certificates(name) -> the fields of WireConfig that make a node secure; one key and certificate a name."""
    made = {}

    def of(name):
        if name not in made:
            key = identity.make_key()
            certificate, _ = authority.sign(identity.certificate_request(key, name), name)
            made[name] = {
                "authority": authority.nodes,
                "certificate": certificate,
                "key": key,
                "pinned": authority.certificate,
            }
        return made[name]

    return of


@pytest.fixture(params=["thread", "process"])
def nodes(request):
    """Insecure nodes, as threads and as processes."""
    with contextlib.closing(Nodes(request.param == "process", None)) as made:
        yield made


@pytest.fixture
def processes():
    """Insecure nodes with processes of their own, which a test may kill."""
    with contextlib.closing(Nodes(True, None)) as made:
        yield made


@pytest.fixture(params=["thread", "process"])
def secure_nodes(request, certificates):
    with contextlib.closing(Nodes(request.param == "process", certificates)) as made:
        yield made


@pytest.fixture
def thread_nodes():
    with contextlib.closing(Nodes(False, None)) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_left():
    """No file descriptor, child process or shared-memory file outlives a test."""
    before = descriptors()
    yield
    deadline = time.monotonic() + 30.0
    while len(left := [one for one in descriptors() if one not in before]) > GRPC_KEEPS and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
    assert len(left) <= GRPC_KEEPS, left
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert not [pid for pid in children if "io_process" in Path(f"/proc/{pid}/cmdline").read_text()]
