"""A real S3-compatible HTTP server on loopback (moto's), for tests; it can be stopped and started again, empty."""

import contextlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest
from ports import free_port

_START_S = 120.0


class S3Server:
    """``options`` are what fsspec needs to reach it; ``bucket`` is there while it runs."""

    def __init__(self) -> None:
        self._port = free_port()
        self.bucket = "s3://bucket"
        self.options = {
            "key": "an-id",
            "secret": "not-to-be-told",
            "endpoint_url": f"http://127.0.0.1:{self._port}",
            "config_kwargs": {"retries": {"max_attempts": 1}},
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]
        self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + _START_S
        request = urllib.request.Request(f"{self.options['endpoint_url']}/bucket", method="PUT")
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=10):
                return
            assert self._process.poll() is None and time.monotonic() < deadline, "moto's server does not start"
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def running_server() -> Iterator[S3Server]:
    """A server while the block runs; skipped where what it needs is not installed."""
    for module in ("moto", "flask", "flask_cors", "s3fs"):
        pytest.importorskip(module, reason=f"{module} is not installed: pip install 'farflung[dev]'")
    server = S3Server()
    try:
        server.start()
        yield server
    finally:
        server.stop()
