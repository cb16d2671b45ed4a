"""Makes a step's microbatches ahead, by one, in a thread: rows are read, decoded and pinned while the device computes.

What a microbatch is follows from its ids alone, so it is the same whoever makes it and when.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from .dataset import Dataset

Ids = tuple[int, ...]
Batch = tuple[Tensor, Tensor, Tensor | None]


class Loader(Dataset):
    """``data``, of which the announced microbatches are made ahead. ``close`` ends the thread; the samples are there
    after that too."""

    def __init__(self, data: Dataset, device: torch.device) -> None:
        """``device``: where the samples go; for a CUDA device microbatches that are made ahead are pinned."""
        self.samples, self.validation_samples = data.samples, data.validation_samples
        self._data = data
        self._pins = device.type == "cuda" and torch.cuda.is_available()
        self._changed = threading.Condition()
        self._wanted: frozenset[Ids] = frozenset()
        self._queue: deque[Ids] = deque()
        self._making: Ids | None = None
        self._made: dict[Ids, Batch | BaseException] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def announce(self, batches: Sequence[Sequence[int]]) -> None:
        """The microbatches that will be asked for, in this order, in place of those announced before."""
        if not self._data.apart:
            return
        wanted = dict.fromkeys(tuple(ids) for ids in batches)
        with self._changed:
            if self._closed:
                return
            self._wanted = frozenset(wanted)
            self._made = {ids: made for ids, made in self._made.items() if ids in wanted}
            self._queue = deque(ids for ids in wanted if ids not in self._made and ids != self._making)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="loader", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def placed(self, ids: Sequence[int]) -> Batch:
        """As `Dataset.placed`; an error that came up ahead is raised here."""
        key, made = tuple(ids), None
        with self._changed:
            if key in self._wanted:
                while self._making == key:
                    self._changed.wait()
                made = self._made.pop(key, None)
                if made is None and key in self._queue:
                    self._queue.remove(key)  # the thread is behind
                self._changed.notify_all()
        if made is None:
            return self._data.placed(ids)
        if isinstance(made, BaseException):
            raise made
        return made

    def close(self) -> None:
        """End the thread. May be called again."""
        with self._changed:
            self._closed, self._wanted, self._made = True, frozenset(), {}
            self._queue.clear()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (self._made or not self._queue):
                    self._changed.wait()
                if self._closed:
                    return
                ids = self._making = self._queue.popleft()
            made = self._make(ids)
            with self._changed:
                self._making = None
                if ids in self._wanted:
                    self._made[ids] = made
                self._changed.notify_all()

    def _make(self, ids: Ids) -> Batch | BaseException:
        try:
            tokens, targets, places = self._data.placed(ids)
            if not self._pins:
                return tokens, targets, places
            return tokens.pin_memory(), targets.pin_memory(), None if places is None else places.pin_memory()
        except BaseException as problem:  # also a SystemExit of own code: the step that asks for them raises it
            return problem

    # ---- the rest is as it is --------------------------------------------------------------

    def batch(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self._data.batch(ids)

    def trained(self, ids: Sequence[int]) -> int | None:
        return self._data.trained(ids)

    def ahead(self, ids: Sequence[int]) -> None:
        self._data.ahead(ids)
