"""Nobody but its owner reads a run's folder: real processes, an open umask, and a folder that was open before."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_the_state_folder_is_its_owners(
    start: Callable[..., Any], job_file: Callable[..., Path], tmp_path: Path
) -> None:
    state = tmp_path / "runs" / "state"
    state.mkdir(parents=True, mode=0o777)
    state.chmod(0o777)
    before = os.umask(0)
    try:
        running = start(
            *("coordinator", "start", str(job_file()), "--listen", "127.0.0.1:0", "--page", "127.0.0.1:0"),
            *("--min-nodes", "9", "--state", str(state)),
        )
    finally:
        os.umask(before)
    running.wait_for("listening")
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    found = list(state.rglob("*"))
    assert {"run.sqlite", "coordinator.key", "nodes.key", "operator.token"} <= {path.name for path in found}
    for path in found:
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), (path, oct(mode))
    assert {path.name for path in (state / "scrape").iterdir()} == {"viewer.token"}, "no TLS on loopback"
