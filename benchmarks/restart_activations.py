"""What a restart of everything costs where activations go as AQ-SGD: both ends of each link have forgotten all samples.

    python -m benchmarks.restart_activations [--seeds 2]

Two pipelines of two stages train in one process (testing/loopback.py), ten steps an epoch. All nodes end after the
checkpoint of step 40 and begin again with it and with what they had kept beside it: once with what both ends of each
link had of the samples, as from the best of all files, and once with none of it, as they do. The table has the mean
over seeds of the training loss of the next four steps and of steps 57 to 60, the bytes of activations (forward) in the
two epochs after the restart, and what all ends hold after step 40, and would have to write with that checkpoint.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from farflung.compress.stateful.aqsgd import Entry
from farflung.job.schema import Job
from farflung.proto import data_pb2
from farflung.scheduler import Plan
from farflung.testing.loopback import Hub

from .restarts import AT, COCKTAIL, STEPS, again, begun, facts_of, job_of, settle

PLAN = Plan(pipelines=(("a", "b"), ("c", "d")), stages=((0, 1), (2, 3)), microbatches=(2, 2))
EPOCH = 10
BOUNDARY = 2
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("gradient", {"codec": "none"}, "none"),
    ("gradient", {"codec": "none"}, "aqsgd:bits=4"),
    ("gradient", {"codec": "none"}, "aqsgd:bits=2"),
    ("delta", {"codec": COCKTAIL, "overlap": 1}, "aqsgd:bits=4"),
    ("delta", {"codec": COCKTAIL, "overlap": 1}, "aqsgd:bits=2"),
]
Kept = dict[str, dict[int, Entry]]
"""By node what its end of a link held after step ``AT``."""


@dataclass
class Watch:
    """Counts activations that go, and keeps what both ends hold as step ``AT`` is over."""

    hub: Hub
    bytes: dict[int, int] = field(default_factory=dict)
    kept: Kept = field(default_factory=dict)

    def __call__(
        self, sender: str, to: str, header: data_pb2.Header, data: npt.NDArray[np.uint8]
    ) -> npt.NDArray[np.uint8]:
        if header.kind == data_pb2.ACTIVATION:
            step = header.activation.step
            self.bytes[step] = self.bytes.get(step, 0) + data.nbytes
        if header.kind in (data_pb2.ACTIVATION, data_pb2.ACTIVATION_GRADIENT) and header.activation.step == AT + 1:
            # Either end commits a microbatch of a step after its own first message of that step.
            ends = self.hub.trainers[sender].resources.ends
            for end in (*ends._senders.values(), *ends._receivers.values()):
                self.kept.setdefault(sender, dict(end._entries))
        return data


def remember(hub: Hub, kept: Kept) -> None:
    """The nodes of a new hub hold what those of another did."""
    for row in PLAN.pipelines:
        for name, end in (
            (row[0], hub.trainers[row[0]].resources.ends.sender(row[1], BOUNDARY)),
            (row[1], hub.trainers[row[1]].resources.ends.receiver(row[0], BOUNDARY)),
        ):
            if end is not None:
                end._entries.update(kept[name])
                end.bytes = sum(entry.value.nbytes for entry in kept[name].values())


def runs(mode: str, updates: dict[str, Any], forward: str, seed: int) -> list[tuple[dict[int, float], Watch]]:
    """Losses and watch of a run: undisturbed, restarted with what the ends held, and without."""
    plain = job_of(mode, updates, seed).model_dump(exclude_unset=True)
    plain["model"] |= {"layers": 2, "width": 64}
    job = Job.model_validate({**plain, "activations": {"forward": forward, "backward": "none"}})
    more = {"plan": PLAN, "facts": facts_of(EPOCH * job.train.batch)}
    found = []
    with tempfile.TemporaryDirectory() as place:

        def watched(hub: Hub) -> None:
            hub.tamper = Watch(hub)

        def with_memory(hub: Hub) -> None:
            watched(hub)
            remember(hub, found[0][1].kept)

        made = begun(job, Path(place), {}, before=watched, **more)
        for hub in (made, None, None):
            if hub is None:
                before = with_memory if len(found) == 1 else watched
                hub = again(job, Path(place), made, before=before, **more)
            losses = hub.finish(PLAN.nodes).losses
            assert isinstance(hub.tamper, Watch)
            found.append((losses, hub.tamper))
            settle(hub, AT)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    what = ("undisturbed", "remembered", "forgotten")
    columns = f"{'loss of 41-44':>15}{'loss of 57-60':>15}{'kB of 41-50':>13}{'kB of 51-60':>13}{'kB held':>9}"
    print(f"{'':42}{columns}")
    for mode, updates, forward in CASES:
        rows: dict[str, list[list[float]]] = {one: [] for one in what}
        for seed in range(given.seeds):
            for name, (losses, watch) in zip(what, runs(mode, updates, forward, seed), strict=True):
                held = sum(entry.value.nbytes for end in watch.kept.values() for entry in end.values())
                rows[name].append(
                    [
                        *(statistics.mean(losses[s] for s in range(first, first + 4)) for first in (AT + 1, STEPS - 3)),
                        *(sum(watch.bytes[s] for s in range(first, first + 10)) / 1e3 for first in (AT + 1, AT + 11)),
                        held / 1e3,
                    ]
                )
        for name, row in rows.items():
            mean = [statistics.mean(column) for column in zip(*row, strict=True)]
            print(
                f"{mode + ' ' + forward if name == what[0] else '':28}{name:14}{mean[0]:15.4f}{mean[1]:15.4f}"
                f"{mean[2]:13.1f}{mean[3]:13.1f}{mean[4]:9.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
