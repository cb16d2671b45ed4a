"""``farflung demo``: a language model trained by four nodes on this machine, from the text to a sample of new text.

The job is ``examples/shakespeare.toml`` as it stands, copied next to its text into the state folder, so that what the
demo does can be read, changed and run by hand. Exporting and generating run as commands of their own: this
process never imports torch.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from ..proto.errors import FarflungError, RunFailed
from .local.children import Children, Ended, Said
from .local.run import LocalRun, interruptible, run
from .next_words import fresh
from .screen.output import FAILED, Output
from .screen.story import Event
from .screen.terminal import screen

_JOB = "shakespeare.toml"
_PROMPT = "ROMEO"
_TOKENS = 200


def demo(output: Output, state: Path | None, nodes: int, write_text: Callable[[Path], Any]) -> int:
    """Train, export, generate. Returns the exit status.

    Args:
        state: the run's folder; the first of runs/demo, runs/demo-2, ... that does not exist yet by default.
        nodes: how many node processes.
        write_text: writes the text that the job trains on below a folder, where the job expects it beside itself.
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
        exported = _ask(folder, "export", [str(folder), str(fresh(folder, "model"))])
        written = _ask(folder, "generate", [str(exported["path"]), _PROMPT, "--tokens", str(_TOKENS)])
        if output.json:
            shown.show({"event": "export", "path": exported["path"]})
            shown.show({"event": "sample", "prompt": _PROMPT, "text": written["text"]})
    output.say(f"\nA folder that transformers.AutoModelForCausalLM.from_pretrained loads:\n  {exported['path']}")
    output.say(f"\nThe model goes on from {_PROMPT!r}:\n")
    output.say("\n".join("  " + line for line in (_PROMPT + written["text"]).splitlines()))
    output.say(f"\nNext: farflung status {folder}, or with your own text: farflung job init")
    return 0


def _ask(folder: Path, name: str, arguments: list[str]) -> Event:
    """Run one command and return the object that it prints."""
    children = Children(folder / "logs")
    answer: Event = {}
    try:
        child = children.start(name, [name, *arguments], {}, lifeline=False)
        while not isinstance(word := children.next(), Ended):
            if isinstance(word, Said):
                answer = word.event
    finally:
        children.stop()
    if word.status:
        hint = str(child.error.get("hint", "")) or f"its log is {child.log}"
        raise FarflungError(f"{name}: {child.end_text()}", hint, word.status if word.status > 0 else FAILED)
    if not answer:
        raise RunFailed(f"{name} printed nothing", f"its log is {child.log}")
    return answer
