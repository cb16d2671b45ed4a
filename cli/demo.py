"""``farflung demo``: a language model trained by four nodes on this machine, from the text to a sample of new text.

The job is ``examples/shakespeare.toml``, copied with its text into the state folder, so that people can read it, change
it and run it by hand. Exporting and generating run as separate processes: this process never imports torch.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from ..proto.errors import FarflungError, RunFailed
from .local.children import Children, Said
from .local.run import LocalRun, interruptible, run
from .next_words import fresh
from .screen.events.event import Event
from .screen.output import FAILED, Output
from .screen.terminal import screen

_JOB = "shakespeare.toml"
_PROMPT = "ROMEO"
_TOKENS = 200


def demo(output: Output, state: Path | None, nodes: int, write_text: Callable[[Path], Any]) -> int:
    """Train, export, generate. Returns the exit status.

    Args:
        state: the run's folder; by default the first of runs/demo, runs/demo-2, ... that does not exist.
        nodes: how many node processes.
        write_text: writes the training text below a folder, at the path where the job file expects it.
    """
    folder = state if state is not None else fresh(Path("runs"), "demo")
    job = folder / _JOB
    if not job.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder)
        with as_file(files(__package__.rpartition(".")[0]) / "examples" / _JOB) as example:
            shutil.copyfile(example, job)
    output.say(f"A coordinator and {nodes} nodes on this machine train {job}")
    with interruptible(), screen(output) as shown:
        status = run(LocalRun(job, folder, nodes, debug=output.debug), shown.show)
        if status:
            return status
        output.say("\nexporting the checkpoint and writing some text with it ...")
        # They run at the same time, because both only read the checkpoint, and most of their time is loading torch.
        exported, written = _ask(
            folder,
            ["export", str(folder), str(fresh(folder, "model"))],
            ["generate", str(folder), _PROMPT, "--tokens", str(_TOKENS)],
        )
        if output.json:
            shown.show({"event": "export", "path": exported["path"]})
            shown.show({"event": "sample", "prompt": _PROMPT, "text": written["text"]})
    output.say(f"\nA folder that transformers.AutoModelForCausalLM.from_pretrained loads:\n  {exported['path']}")
    output.say(f"\nThe model goes on from {_PROMPT!r}:\n")
    output.say("\n".join("  " + line for line in (_PROMPT + written["text"]).splitlines()))
    output.say(f"\nNext: farflung status {folder}, or with your own text: farflung job init")
    return 0


def _ask(folder: Path, *commands: list[str]) -> list[Event]:
    """Run these commands at the same time and return the object that each prints."""
    children = Children(folder / "logs")
    answers: dict[str, Event] = {}
    try:
        waiting = {words[0] for words in commands}
        for words in commands:
            children.start(words[0], words, {}, lifeline=False)
        while waiting:
            word = children.next()
            assert word is not None  # None is returned only after a timeout
            name = word.child.name
            if isinstance(word, Said):
                answers[name] = word.event
                continue
            waiting.discard(name)
            if word.status:
                hint = str(word.child.error.get("hint", "")) or f"its log is {word.child.log}"
                status = word.status if word.status > 0 else FAILED
                raise FarflungError(f"{name}: {word.child.end_text()}", hint, status)
            if not answers.get(name):
                raise RunFailed(f"{name} printed nothing", f"its log is {word.child.log}")
    finally:
        children.stop()
    return [answers[words[0]] for words in commands]
