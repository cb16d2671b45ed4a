"""The steps of ``benchmarks/gpu.sh``, each in a process of its own with a time limit; a step that fails stops no other.

Results are in gpu.json after each step: the card, the commit, and what every step found, or how it failed. With
``--only`` the other steps' results stay there if they are of the same card, torch and commit, so that the steps may run
one by one. The exit status is 1 if a step failed or ran out of time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent
HERE = "benchmarks"
LIMITS = {"tests": 120.0, "islands": 45.0, "rows": 40.0, "kernels": 30.0, "codecs": 120.0, "run": 205.0}
"""Seconds of each step, in this order; ten minutes with the start of each."""


def commands(tiny: bool) -> dict[str, list[str]]:
    """What each step runs; one that measures writes a JSON file to the path that is added."""
    small = ["--tiny"] if tiny else []
    tests = ["-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    kernels = [] if tiny else ["tests/compress"]  # without a card: in the quick suite
    return {
        "tests": [*tests, "tests/node/training", "tests/node/state", *kernels],
        "islands": [*tests, "tests/node/pipeline", "-k", "not rows"],
        "rows": [*tests, "tests/node/pipeline", "-k", "rows"],  # by itself: what torch aborts ends the process
        "kernels": [f"{HERE}/gpu_kernels.py", "kernels", *small, "--json"],
        "codecs": [f"{HERE}/gpu_kernels.py", "codecs", *small, "--json"],
        "run": [f"{HERE}/gpu_run.py", *small, "--json"],
    }


def step(words: list[str], environment: dict[str, str], limit: float, result: Path) -> dict[str, Any]:
    """Runs one; its result, its seconds, and the end of what it printed if it failed."""
    if measures := words[-1] == "--json":
        words = [*words, str(result)]
        result.unlink(missing_ok=True)
    began = time.monotonic()
    printed = result.with_suffix(".log")
    with printed.open("w") as log:
        process = subprocess.Popen([sys.executable, *words], cwd=ROOT, env=environment, stdout=log, stderr=log)
        try:
            status: int | str = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.terminate()  # a run ends its nodes then
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            status = f"not done after {limit:.0f} s"
    text = printed.read_text(errors="replace")
    print(text, flush=True)
    found: dict[str, Any] = {"status": status, "seconds": round(time.monotonic() - began, 1)}
    if status != 0:
        found["output"] = text[-4000:]
    elif not measures:
        found["output"] = text.strip().splitlines()[-1]
    if measures and result.exists():  # also what a step that was stopped had found until then
        found["found"] = json.loads(result.read_text())
    return found


def kept(file: Path, now: dict[str, Any]) -> dict[str, Any]:
    """What earlier calls found of these steps, if the device, torch and the commit are those of ``now``."""
    before: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if any(before.get(name) != value for name, value in now.items()):
        return {}
    return {name: found for name, found in before.items() if name in LIMITS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path())
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", nargs="+", choices=list(LIMITS), default=list(LIMITS))
    wanted = parser.parse_args()
    if not wanted.tiny and not torch.cuda.is_available():
        sys.exit("torch sees no CUDA device here; --tiny runs the same steps on the CPU")
    environment = dict(os.environ)
    if wanted.tiny:
        environment |= {"FARFLUNG_GPU": "cpu", "OMP_NUM_THREADS": "1"}
    wanted.folder.mkdir(parents=True, exist_ok=True)
    folder = wanted.folder.resolve()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    results: dict[str, Any] = {
        "device": "the CPU, tiny sizes: no measurement" if wanted.tiny else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "commit": commit.stdout.strip() or "unknown",
    }
    results |= kept(folder / "gpu.json", results)
    for name, words in commands(wanted.tiny).items():
        if name in wanted.only:
            print(f"== {name}", flush=True)
            limit = LIMITS[name] * (4 if wanted.tiny else 1)  # cores are slower, and may be shared
            interpreted = {"TRITON_INTERPRET": "1"} if wanted.tiny and name in ("kernels", "codecs") else {}
            results[name] = step(words, environment | interpreted, limit, folder / f"gpu-{name}.json")
            (folder / "gpu.json").write_text(json.dumps(results, indent=1) + "\n")
    failed = [name for name in wanted.only if results[name]["status"] != 0]
    print(f"results: {folder / 'gpu.json'}; " + (f"FAILED: {', '.join(failed)}" if failed else "all steps passed"))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
