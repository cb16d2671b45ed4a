"""A coordinator as a process of its own, for tests that kill it; run as a script it is that process."""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

from quick_start import Nursery, Started

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

    def __init__(self, nursery: Nursery, job: Path, environment: dict[str, str] | None = None, **options) -> None:
        self.state = Path(options["state"])
        self._events: list[dict] = []
        self._read = 0
        path = self.state.parent / f"{self.state.name}-{time.monotonic_ns()}"
        self._said, self._errors = path.with_suffix(".events"), path.with_suffix(".log")
        self._said.touch()
        order = {
            "words": ["python", __file__, json.dumps({"job": job, **options}, default=str)],
            "environment": {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
            "cwd": str(Path.cwd()),
            "stdout": str(self._said),
            "stderr": str(self._errors),
        }
        self._process = Started(nursery, nursery.begin(order))

    @property
    def events(self) -> list[dict]:
        """All that it has said so far."""
        with self._said.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        self._events += [json.loads(line) for line in whole.splitlines()]
        return self._events

    async def event(self, kind, number=1, timeout=120.0, **keys):
        """The ``number``-th event of that kind with these values, waited for."""
        deadline = time.monotonic() + timeout
        while True:
            ended = self._process.poll() is not None
            fits = [
                one
                for one in self.events
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
        while True:
            running = self._process.poll() is None and time.monotonic() < deadline
            if any(words in one.get("message", "") for one in self.events):
                return
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
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

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
