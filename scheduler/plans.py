"""Plan: who holds which layers in which pipeline, each pipeline's share of the batch, who is spare, and why."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from .errors import PlanError
from .trials import Trial, Tuning


@dataclass(frozen=True)
class Plan:
    """A decision of the scheduler. Frozen and comparable by value: two equal plans give equal views.

    pipelines: node names in stage order, one tuple for each pipeline. A node may hold several stages of one pipeline
        (interleaved), never stages of two pipelines.
    stages: (first layer, last layer) of each stage, both inclusive.
    microbatches: how many microbatches of a step each pipeline takes; they add up to the batch.
    pieces: into how many pieces each pipeline cuts its microbatches, where a device has too little memory for a whole
    one; empty: no pipeline cuts any. spares: node name -> why it is left out. codecs: link class ("activations", "A>B"
    for one link, "updates" or "updates of stage N") -> codec. overlap: steps that a round may be in flight; None: the
    job's own value counts. publishers: for each stage, the fraction of the blocks that each node of its group
    publishes, in pipeline order. regions: the node names of each region, where rounds go in two levels (inside regions,
    then between them); else empty. schedule: the order in which nodes compute. in_flight: for each pipeline, how many
    microbatches each stage may have in flight (1F1B); empty: the schedule's own numbers. chosen: keys of the job that
    say "auto" -> what the plan chose for them. tuning: what the view's first steps try of these, or what was measured
    (trials.py); None: nothing can be tried. why: one sentence.
    """

    pipelines: tuple[tuple[str, ...], ...]
    stages: tuple[tuple[int, int], ...]
    microbatches: tuple[int, ...]
    spares: dict[str, str] = field(default_factory=dict)
    codecs: dict[str, str] = field(default_factory=dict)
    publishers: tuple[tuple[float, ...], ...] = ()
    schedule: str = "1f1b"
    why: str = ""
    overlap: int | None = None
    regions: tuple[tuple[str, ...], ...] = ()
    pieces: tuple[int, ...] = ()
    in_flight: tuple[tuple[int, ...], ...] = ()
    chosen: dict[str, int | bool | str] = field(default_factory=dict)
    tuning: Tuning | None = None

    def __post_init__(self) -> None:
        # A plan written by hand may have lists; with tuples it compares equal to one from the scheduler.
        object.__setattr__(self, "pipelines", tuple(tuple(row) for row in self.pipelines))
        object.__setattr__(self, "stages", tuple((int(first), int(last)) for first, last in self.stages))
        object.__setattr__(self, "microbatches", tuple(self.microbatches))
        object.__setattr__(self, "pieces", tuple(self.pieces))
        object.__setattr__(self, "publishers", tuple(tuple(row) for row in self.publishers))
        object.__setattr__(self, "in_flight", tuple(tuple(row) for row in self.in_flight))
        object.__setattr__(self, "regions", tuple(tuple(row) for row in self.regions))
        inside = [node for region in self.regions for node in region]
        if inside and sorted(inside) != sorted(self.nodes):
            raise PlanError("the regions of a plan hold each node that trains once")
        if not self.pipelines or not self.stages:
            raise PlanError("a plan needs at least one pipeline and one stage")
        if len(self.microbatches) != len(self.pipelines):
            raise PlanError(f"{len(self.pipelines)} pipelines need as many shares, not {len(self.microbatches)}")
        if self.pieces and (len(self.pieces) != len(self.pipelines) or min(self.pieces) < 1):
            raise PlanError(f"pieces {list(self.pieces)} are not a number for each of {len(self.pipelines)} pipelines")
        shape = [len(self.stages)] * len(self.pipelines)
        if self.in_flight and ([len(row) for row in self.in_flight] != shape or min(map(min, self.in_flight)) < 1):
            raise PlanError("in_flight needs a number of microbatches for each pipeline and stage")
        for trial in self.tuning.trials if self.tuning is not None else ():
            one = trial.in_flight
            if one and ([len(row) for row in one] != shape or min(map(min, one)) < 1):
                raise PlanError("in_flight of a trial needs a number of microbatches for each pipeline and stage")
            if trial.pieces and (len(trial.pieces) != len(self.pipelines) or min(trial.pieces) < 1):
                raise PlanError("pieces of a trial need a number for each pipeline")
        if any(share < 1 for share in self.microbatches):
            raise PlanError("every pipeline of a plan takes at least one microbatch")
        owner: dict[str, int] = {}
        for index, pipeline in enumerate(self.pipelines):
            if len(pipeline) != len(self.stages):
                raise PlanError(f"pipeline {index} has {len(pipeline)} nodes for {len(self.stages)} stages")
            for node in pipeline:
                if owner.setdefault(node, index) != index:
                    raise PlanError(f"node {node!r} is in pipelines {owner[node]} and {index}")
                if node in self.spares:
                    raise PlanError(f"node {node!r} is in a pipeline and a spare")
        first = 0
        for begin, end in self.stages:
            if begin != first or end < begin:
                raise PlanError(f"stages {list(self.stages)} are not consecutive layer ranges")
            first = end + 1
        if self.publishers and [len(row) for row in self.publishers] != [len(self.pipelines)] * len(self.stages):
            raise PlanError("publishers need one fraction for each stage and pipeline")

    @cached_property
    def _pipeline(self) -> dict[str, int]:
        return {node: index for index, pipeline in enumerate(self.pipelines) for node in pipeline}

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """Every node that trains, pipeline by pipeline, in stage order, each once."""
        return tuple(self._pipeline)

    def __contains__(self, node: str) -> bool:
        """Whether a node trains."""
        return node in self._pipeline

    @property
    def layers(self) -> int:
        """Number of layers of the model."""
        return self.stages[-1][1] + 1

    @property
    def shares(self) -> tuple[float, ...]:
        """Each pipeline's part of the batch; they add up to 1."""
        total = sum(self.microbatches)
        return tuple(count / total for count in self.microbatches)

    def pipeline_of(self, node: str) -> int:
        """Index of the node's pipeline. PlanError if the node trains nothing."""
        if node not in self._pipeline:
            raise PlanError(f"node {node!r} is in no pipeline of this plan")
        return self._pipeline[node]

    def stage_of(self, node: str) -> int:
        """Index of the node's (first) stage."""
        return self.pipelines[self.pipeline_of(node)].index(node)

    def stages_of(self, node: str) -> tuple[int, ...]:
        """Indices of all stages that the node holds: one, or several if the schedule is interleaved."""
        pipeline = self.pipelines[self.pipeline_of(node)]
        return tuple(stage for stage, name in enumerate(pipeline) if name == node)

    def layers_in(self, stage: int) -> range:
        """The layers of a stage."""
        first, last = self.stages[stage]
        return range(first, last + 1)

    def layers_of(self, node: str) -> frozenset[int]:
        """The layers that the node holds. PlanError if the node trains nothing."""
        return frozenset(layer for stage in self.stages_of(node) for layer in self.layers_in(stage))

    def group(self, stage: int) -> tuple[str, ...]:
        """The nodes that hold this stage, in pipeline order."""
        return tuple(pipeline[stage] for pipeline in self.pipelines)

    def keeper(self, stage: int) -> str:
        """The node that sends the stage's file of a checkpoint: the one in pipeline `stage % pipelines`, so that
        pipelines take turns."""
        return self.pipelines[stage % len(self.pipelines)][stage]

    def neighbours(self, node: str) -> tuple[str | None, str | None]:
        """The nodes before and after this one in its pipeline; None at the ends."""
        pipeline = self.pipelines[self.pipeline_of(node)]
        held = self.stages_of(node)
        before = pipeline[held[0] - 1] if held[0] > 0 else None
        after = pipeline[held[-1] + 1] if held[-1] + 1 < len(pipeline) else None
        return before, after

    def share_of(self, node: str) -> float:
        """The node's weight: its pipeline's part of the batch."""
        return self.shares[self.pipeline_of(node)]

    def pieces_of(self, pipeline: int) -> int:
        """Into how many pieces this pipeline cuts its microbatches."""
        return self.pieces[pipeline] if self.pieces else 1

    def in_flight_of(self, pipeline: int, stage: int) -> int:
        """How many microbatches this stage may have in flight; 0: the schedule's own number."""
        return self.in_flight[pipeline][stage] if self.in_flight else 0

    def update_codec(self, stage: int) -> str | None:
        """The codec of a stage's rounds; None where the job's own is used."""
        return self.codecs.get(f"updates of stage {stage}", self.codecs.get("updates"))

    def link_codec(self, sender: str, receiver: str) -> str | None:
        """The codec of activations from one node to the next; None where the job's own is used."""
        return self.codecs.get(f"{sender}>{receiver}")

    def publisher(self, stage: int, block: int, blocks: int) -> str:
        """The node that publishes a block of the stage's vector: contiguous runs, by each node's fraction.

        Equal fractions where the plan has none. Every node whose fraction is worth half a block or more gets at least
        one block; the runs cover all blocks.
        """
        group = self.group(stage)
        fractions = self.publishers[stage] if self.publishers else (1.0 / len(group),) * len(group)
        total = sum(fractions)
        position = (block + 0.5) / blocks
        reached = 0.0
        for node, fraction in zip(group, fractions, strict=True):
            reached += fraction / total
            if position < reached:
                return node
        return group[-1]

    def to_json(self) -> str:
        """One line of JSON; the same plan always gives the same text."""
        content: dict[str, Any] = {
            "pipelines": self.pipelines,
            "stages": self.stages,
            "microbatches": self.microbatches,
            "spares": self.spares,
            "codecs": self.codecs,
            "publishers": self.publishers,
            "regions": self.regions,
            "schedule": self.schedule,
            "why": self.why,
            "overlap": self.overlap,
            "pieces": self.pieces,
            "in_flight": self.in_flight,
            "chosen": self.chosen,
            "tuning": None if self.tuning is None else asdict(self.tuning),
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The inverse of to_json. Unknown keys are ignored, so that an older reader reads a newer plan."""
        try:
            content = json.loads(text)
            return cls(
                pipelines=tuple(tuple(map(str, row)) for row in content["pipelines"]),
                stages=tuple((int(first), int(last)) for first, last in content["stages"]),
                microbatches=tuple(map(int, content["microbatches"])),
                spares=dict(content.get("spares", {})),
                codecs=dict(content.get("codecs", {})),
                publishers=tuple(tuple(map(float, row)) for row in content.get("publishers", ())),
                schedule=str(content.get("schedule", "1f1b")),
                chosen={str(key): _plain(value) for key, value in dict(content.get("chosen", {})).items()},
                why=str(content.get("why", "")),
                pieces=tuple(map(int, content.get("pieces", ()))),
                in_flight=tuple(tuple(map(int, row)) for row in content.get("in_flight", ())),
                overlap=None if content.get("overlap") is None else int(content["overlap"]),
                regions=tuple(tuple(map(str, row)) for row in content.get("regions", ())),
                tuning=_tuning(content.get("tuning")),
            )
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, PlanError):
                raise
            raise PlanError(f"this is not a plan: {error!r}") from error

    def same_placement(self, other: Plan | None) -> bool:
        """Whether the other plan gives every node the same place, layers, share, codecs and rounds."""
        return (
            other is not None
            and self.pipelines == other.pipelines
            and self.stages == other.stages
            and self.microbatches == other.microbatches
            and self.schedule == other.schedule
            and self.pieces == other.pieces
            and self.in_flight == other.in_flight
            and self.regions == other.regions
            and self.overlap == other.overlap
            and self.codecs == other.codecs
            and self.chosen == other.chosen
        )


def _plain(value: object) -> int | bool | str:
    if not isinstance(value, int | str):
        raise TypeError(f"{value!r} is no number, no truth value and no word")
    return value


def _tuning(found: Any) -> Tuning | None:
    if found is None:
        return None
    trials = tuple(
        Trial(
            int(one["microbatch"]),
            None if one["recompute"] is None else bool(one["recompute"]),
            tuple(tuple(map(int, row)) for row in one["in_flight"]),
            None if one.get("offload") is None else str(one["offload"]),
            tuple(map(int, one.get("pieces", ()))),
        )
        for one in found["trials"]
    )
    offload = str(found.get("offload", ""))
    return Tuning(trials, str(found["why"]), int(found["broken"]), bool(found["measured"]), offload)
