"""Gradient mode: rounds begin while the backward pass still runs.

A part of a section is offered as soon as the last backward pass of the step has reached all of its parameters: the last
layers' first, while the gradients of earlier layers are still computed. What is offered, and so every sum, has the same
bits as if all had been offered after the pass; only the time differs. So a node whose gradient is complete only after
the pass (of an island, of a user's own loop) is in one round with nodes that offer early.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ...pipeline.chunk import Chunk
from ...rounds.protocol.messages import Part
from ...rounds.round_link import RoundLink
from ...state.sections.gradients import Gradients
from ..member.view_member import ViewMember

SWITCH = "FARFLUNG_EARLY"
"""The environment variable that, set to 0, makes this node offer everything after the pass: to measure the
difference."""
Key = tuple[str, int]
"""A section's name and the index of a part."""


def is_final(precision: str, is_gradient: bool) -> bool:
    """Whether what the backward pass makes is what the group sums: not if a loss scale must be divided out after it
    (fp16), or if the optimiser makes something else of it (``is_gradient`` is false: 1-bit Adam)."""
    return precision in ("fp32", "bf16") and is_gradient


class EarlyOffers:
    """Watches the last backward passes of each step in one view, and offers the parts whose gradients are complete.

    Sections with a single part are left to the step's end: that part is complete only with the last gradient.
    """

    def __init__(self, view: ViewMember, chunks: Sequence[Chunk], gradients: Gradients) -> None:
        self._view, self._gradients = view, gradients
        self._parts: dict[Key, tuple[RoundLink, Part]] = {}
        self._of: dict[str, list[Key]] = {}
        """Parameter -> the parts that have some of its elements."""
        for name, link in view.links.items():
            parts = [part for part in link.rounds.plan.parts if part.phase == 0]
            layout = view.state.sections[name].layout
            for part in parts if len(parts) > 1 else ():
                self._parts[name, part.index] = link, part
                for parameter in layout.names_in(part.start, part.stop):
                    self._of.setdefault(parameter, []).append((name, part.index))
        self._homes: dict[str, set[int]] = {}
        """Parameter -> the stages that compute with it: more than one for a tied embedding."""
        for chunk in chunks:
            for parameter, _ in chunk.model.named_parameters():
                self._homes.setdefault(parameter, set()).add(chunk.stage)
        self._stages = {chunk.stage for chunk in chunks}
        self._counts = Counter(key for keys in self._of.values() for key in keys)
        self._lacking: Counter[Key] = Counter()
        self._to_come: set[int] = set()
        self._is_on = False

    def begin(self, step: int) -> None:
        """A step begins. Nothing is offered early if the optimiser first makes something else of the gradient."""
        view = self._view
        wanted = bool(self._parts) and view.gradient and os.environ.get(SWITCH) != "0"
        self._is_on = wanted and is_final(view.job.train.precision, view.resources.optimizer.clips(step))
        self._lacking, self._to_come = self._counts.copy(), set(self._stages)

    @contextmanager
    def last_backward(self, chunk: Chunk) -> Iterator[None]:
        """A context for the last backward pass of a stage in the step."""
        self._to_come.discard(chunk.stage)
        if not self._is_on:
            yield
            return
        with self._gradients.told(self._came_in(chunk)):
            yield

    def _came_in(self, chunk: Chunk) -> Callable[[str], None]:
        """What a parameter whose gradient has come in this pass leads to."""
        found: set[str] = set()

        def came(name: str) -> None:
            if name in found:
                raise RuntimeError(f"a backward pass of stage {chunk.stage} reached {name} twice")
            found.add(name)
            if self._homes[name] & self._to_come:
                return  # another stage of this node adds to it later
            ready: dict[str, list[Part]] = {}
            for key in self._of.get(name, ()):
                self._lacking[key] -= 1
                if not self._lacking[key]:
                    ready.setdefault(key[0], []).append(self._parts[key][1])
            for section, parts in ready.items():
                self._view.links[section].offer(parts)
            if any(self._parts[key][0].rounds.open is not None for key in self._of.get(name, ())):
                self._view.context.pump(0.0)  # a publisher adds up what has arrived, and passes it on

        return came
