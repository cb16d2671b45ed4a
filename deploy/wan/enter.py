"""Running a command in a host of a WAN: the same environment and folder, the host's network and names."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from typing import IO, Any

from . import kernel
from .errors import WanError
from .lab import Lab


def start(
    lab: Lab,
    i: int,
    command: Sequence[str],
    *,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    env: dict[str, str] | None = None,
    tied: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a command in host i. `tied`: it gets SIGTERM when this process dies, however it dies."""
    namespace, book = lab.namespace(i), str(lab.folder / "hosts")

    def settle() -> None:
        if tied:
            kernel.die_with_parent(signal.SIGTERM)
        kernel.enter(namespace, book)

    try:
        return subprocess.Popen(
            list(command),
            stdout=stdout,
            stderr=stderr,
            env=env,
            preexec_fn=settle,
            stdin=subprocess.DEVNULL if tied else None,
        )
    except FileNotFoundError:
        raise WanError(
            f"no command {command[0]!r}", "give it as you would type it: wan exec LAB HOST -- COMMAND", 127
        ) from None
    except PermissionError as error:
        raise WanError(f"{command[0]}: {error.strerror}", "is it executable?", 126) from None
    except subprocess.SubprocessError as error:
        raise WanError(
            f"could not enter {lab.topology.hosts[i].name}: {error}", f"farflung wan down {lab.name}", 4
        ) from error


def run(lab: Lab, i: int, command: Sequence[str]) -> int:
    """Run a command in host i in the foreground; its exit status (128 + the signal that ended it)."""
    if not command:
        raise WanError("no command", "farflung wan exec LAB HOST -- COMMAND")
    process = start(lab, i, command)
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal interrupts the command, which decides
    try:
        status = process.wait()
    finally:
        signal.signal(signal.SIGINT, old)
    return status if status >= 0 else 128 - status


def environment(**more: str) -> dict[str, str]:
    """This process's environment with a few values more."""
    return {**os.environ, **more}
