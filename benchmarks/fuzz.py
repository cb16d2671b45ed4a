"""Hostile input for as long as you like: every decoder, every message between nodes, every call of the coordinator.

    python -m benchmarks.fuzz [--minutes N] [--output FILE]

Runs the hypothesis tests named below again and again, each time with another seed and more examples, in 8 GiB of
address space, so that an allocation without bound is an error. What fails is kept in ``.hypothesis`` and tried first
the next time. Ends with status 1 and the failing test's own words at the first input that is neither taken nor refused.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = (
    "tests/failures/test_fuzz.py",
    "tests/proto/messages/test_frame.py",
    "tests/proto/words/test_link.py",
    "tests/compress/test_codecs.py::test_a_hostile_blob_with_a_right_checksum_is_decoded_or_refused",
    "tests/compress/test_aqsgd.py",
    "tests/node_io/test_io_parts.py",
)
MEMORY = 8 << 30
TIMES = 10
"""Times as many examples a pass as the quick tests have, where they allow it."""


def once(seed: int) -> tuple[int, str]:
    """One pass over all tests: examples run, and what pytest said if one failed."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout", "0"]
    done = subprocess.run(
        [*pytest, "--hypothesis-show-statistics", f"--hypothesis-seed={seed}", *TESTS],
        cwd=ROOT,
        env={**os.environ, "FUZZ": str(TIMES), "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
        capture_output=True,
        text=True,
        check=False,
    )
    counts = re.findall(r"(\d+) passing, (\d+) failing, and (\d+) invalid", done.stdout)
    return sum(int(one) for count in counts for one in count), done.stdout if done.returncode else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--output", type=Path)
    wanted = parser.parse_args()
    began, passes, executions, failure = time.monotonic(), 0, 0, ""
    first = int(time.time())
    while not failure and time.monotonic() - began < 60 * wanted.minutes:
        count, failure = once(first + passes)
        passes, executions = passes + 1, executions + count
        print(f"{passes} passes, {executions} examples", file=sys.stderr)
    result = {
        "minutes": round((time.monotonic() - began) / 60, 1),
        "passes": passes,
        "examples": executions,
        "failed": bool(failure),
        "first_seed": first,
        "largest_process_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10,
    }
    print(json.dumps(result, indent=1))
    if wanted.output is not None:
        wanted.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if failure:
        print(failure[-20_000:], file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
