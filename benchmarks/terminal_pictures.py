"""Terminals as pictures, of real commands: ``python -m benchmarks.terminal_pictures OUT``.

Types `farflung plan` for nine GPUs in three places, `farflung doctor LINK`, and `farflung join LINK` of a run
that trains, each at a terminal of its own (a pty that a terminal emulator, pyte, reads). docs/terminal-*.svg are these.
Needs `pip install pyte`.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyte
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
COLUMNS, ROWS = 100, 40
LIMIT_S = 300
LINK = ["--link-file", "link", "--no-page"]
CLUSTER = """\
regions = ["zurich", "oregon", "tokyo"]
devices_per_region = {zurich = 4, oregon = 4, tokyo = 1}
latency_ms = [[1, 75, 120], [75, 1, 50], [120, 50, 1]]
bandwidth_gbps = [[10, 0.4, 0.2], [0.4, 10, 0.3], [0.2, 0.3, 10]]
devices = [
  {region = "zurich", memory_gb = 80}, {region = "zurich", memory_gb = 80},
  {region = "zurich", memory_gb = 80}, {region = "zurich", memory_gb = 80},
  {region = "oregon", memory_gb = 80, tflops = 80}, {region = "oregon", memory_gb = 80, tflops = 80},
  {region = "oregon", memory_gb = 80, tflops = 80}, {region = "oregon", memory_gb = 80, tflops = 80},
  {region = "tokyo", memory_gb = 80, tflops = 5},
]
"""
JOB = """\
[run]
steps = 200
[model]
family = "gpt2"
layers = 4
width = 64
heads = 4
context = 64
[data]
text = ["text.txt"]
[train]
batch = 16
microbatch = 4
[parallel]
stages = 2
min_nodes = 2
[updates]
codec = "int8"
[activations]
forward = "int8"
backward = "int8"
"""


class Terminal:
    """A command at a terminal of its own, and what stands on its screen."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self.words = words
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self.screen)
        self._fd, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "farflung", *words],
            cwd=folder,
            env=environment,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
        )
        os.close(inner)

    def read(self, until: Callable[[str], bool]) -> None:
        """Follow the screen until it says so, or the command has ended."""
        limit = time.monotonic() + LIMIT_S
        while not until("\n".join(self.screen.display)):
            if time.monotonic() > limit:
                sys.exit(
                    "\n".join([f"farflung {' '.join(self.words)}: not there after {LIMIT_S} s", *self.screen.display])
                )
            if not select.select([self._fd], [], [], 1.0)[0]:
                continue
            try:
                self._stream.feed(os.read(self._fd, 65536))
            except OSError:  # the other end of a pty is gone: the command has ended
                break

    def picture(self, title: str) -> str:
        """The screen as SVG, with whatever monospaced font there is: nothing is loaded from elsewhere."""
        lines = [self._line(row) for row in range(ROWS)]
        while lines and not lines[-1].plain.strip():
            lines.pop()
        console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), color_system="truecolor")  # noqa: SIM115
        console.print(Text("\n").join(lines), soft_wrap=True)
        return re.sub(r"\s*@font-face \{.*?\}", "", console.export_svg(title=title), flags=re.DOTALL)

    def _line(self, row: int) -> Text:
        line = Text()
        for column in range(COLUMNS):
            cell = self.screen.buffer[row][column]
            name = {"brown": "yellow"}.get(cell.fg, cell.fg)
            colour = (
                None if name == "default" else Color.parse(f"#{name}" if re.fullmatch("[0-9a-f]{6}", name) else name)
            )
            line.append(cell.data, Style(color=colour, bold=cell.bold))
        line.rstrip()
        return line

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait()
        os.close(self._fd)


@contextlib.contextmanager
def behind(words: list[str], folder: Path) -> Iterator[None]:
    """A command that nobody looks at."""
    process = subprocess.Popen(
        [sys.executable, "-m", "farflung", *words, "--json"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def at_terminal(words: list[str], folder: Path) -> Iterator[Terminal]:
    terminal = Terminal(words, folder)
    try:
        yield terminal
    finally:
        terminal.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch)
        (folder / "cluster.toml").write_text(CLUSTER)
        (folder / "job.toml").write_text(JOB)
        (folder / "text.txt").write_text("".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md"))))
        with at_terminal(["plan", "--cluster", "cluster.toml"], folder) as plan:
            plan.read(lambda seen: False)
            (out / "terminal-plan.svg").write_text(plan.picture("farflung plan --cluster cluster.toml"))
        stack.enter_context(behind(["coordinator", "start", "job.toml", "--listen", "127.0.0.1:0", *LINK], folder))
        limit = time.monotonic() + LIMIT_S
        while not (folder / "link").exists():
            if time.monotonic() > limit:
                sys.exit("the coordinator wrote no link")
            time.sleep(0.5)
        with at_terminal(["doctor", "@link"], folder) as doctor:
            doctor.read(lambda seen: False)
            (out / "terminal-doctor.svg").write_text(doctor.picture("farflung doctor @link"))
        stack.enter_context(behind(["join", "@link", "--cache", "other"], folder))
        with at_terminal(["join", "@link", "--cache", "mine"], folder) as node:
            node.read(lambda seen: "computes for" in seen)
            (out / "terminal-join.svg").write_text(node.picture("farflung join @link"))


if __name__ == "__main__":
    main()
