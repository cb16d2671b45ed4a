"""A coordinator as a process of its own, for tests that kill it; run as a script it is that process."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from farflung.scheduler.plans import Plan


def pairs(names, current, broken):
    """A planner: pipelines of two stages, in the order of names; the odd one is spare."""
    stages = 2 if len(names) > 1 else 1
    count = len(names) // stages
    share, rest = divmod(4, count)
    return Plan(
        tuple(tuple(names[index * stages : (index + 1) * stages]) for index in range(count)),
        ((0, 1), (2, 3)) if stages == 2 else ((0, 3),),
        tuple(share + (index < rest) for index in range(count)),
        dict.fromkeys(names[count * stages :], "the odd one"),
    )


class CoordinatorProcess:
    """Its events in order, as it printed them."""

    def __init__(self, job: Path, environment: dict[str, str] | None = None, **options) -> None:
        self.events: list[dict] = []
        self.state = Path(options["state"])
        words = [sys.executable, __file__, json.dumps({"job": job, **options}, default=str)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
        self._errors = self.state.parent / f"{self.state.name}-{time.monotonic_ns()}.log"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, start_new_session=True
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            self.events.append(json.loads(line))

    async def event(self, kind, number=1, timeout=120.0, **keys):
        """The ``number``-th event of that kind with these values, waited for."""
        deadline = time.monotonic() + timeout
        while True:
            ended = self._process.poll() is not None and not self._reader.is_alive()
            fits = [
                one
                for one in list(self.events)
                if one["event"] == kind and all(one.get(key) == value for key, value in keys.items())
            ]
            if len(fits) >= number:
                return fits[number - 1]
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"no event {kind} {keys} in {self.events}; {self.errors[-3000:]}")
            await asyncio.sleep(0.01)

    async def said(self, words, timeout=120.0):
        """A notice or warning with these words in it, waited for."""
        deadline = time.monotonic() + timeout
        while not any(words in one.get("message", "") for one in list(self.events)):
            running = self._process.poll() is None and time.monotonic() < deadline
            assert running, f"nobody said {words!r}: {self.events}; {self.errors[-3000:]}"
            await asyncio.sleep(0.01)

    @property
    def errors(self) -> str:
        """What it wrote to stderr."""
        return self._errors.read_text()

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9, also of the profile that it may have started."""
        if self._process.poll() is None:  # of one that has ended the number may be another's by now
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        self._process.stdout.close()

    async def ended(self, timeout=120.0) -> int:
        """Its exit status, waited for."""
        await asyncio.to_thread(self._process.wait, timeout)
        return self._process.returncode


def main() -> int:
    from farflung.coordinator.serve.serve import run_coordinator
    from farflung.coordinator.serve.starting.options import Options

    asked = json.loads(sys.argv[1])
    for name in ("job", "state"):
        asked[name] = Path(asked[name])

    async def body() -> int:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        return await run_coordinator(
            Options(**asked, planner=pairs), lambda event: print(json.dumps(event), flush=True), stop
        )

    return asyncio.run(body())


if __name__ == "__main__":
    sys.exit(main())
