"""Containers run as users that no list knows, with no HOME or with HOME=/."""

import getpass
import os
import socket
import subprocess
import sys

import pytest

from farflung.cli.one_run import who
from farflung.node.io.metrics import check_free
from farflung.proto.errors import FarflungError


def test_a_command_of_a_user_without_a_name_is_given_by_its_number(monkeypatch):
    def nobody():
        raise KeyError("getpwuid(): uid not found: 1000620000")

    monkeypatch.setattr(getpass, "getuser", nobody)
    monkeypatch.setattr(os, "getuid", lambda: 1000620000)
    assert who.who() == f"user-1000620000@{socket.gethostname()}"


def test_nothing_is_looked_up_at_an_import():
    """No HOME, and a user whom no list knows."""
    code = "import os; os.getuid = lambda: 1000620000; import farflung, farflung.node.agent, farflung.api.group"
    environment = {key: value for key, value in os.environ.items() if key != "HOME"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_taken_port_of_metrics_is_named_before_a_run_is_asked():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(FarflungError, match=f"nothing can listen at --metrics 127.0.0.1:{port}"):
            check_free(f"127.0.0.1:{port}")
    check_free("")
