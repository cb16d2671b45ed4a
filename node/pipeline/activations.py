"""The messages between a stage and its neighbours: activations forward and their gradients back, each encoded.

A stateless codec encodes each message by itself. ``aqsgd`` (Wang et al., 2022) keeps, at both ends, the receiver's last
activation of each sample and sends the quantised change; ``compress.stateful.aqsgd`` holds that state, and this file
connects it to the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ... import compress
from ...compress.blobs.wire import open_blob
from ...compress.specs.spec import parse
from ...compress.stateful.aqsgd import Receiver, Sender
from ...compress.stateful.disk_store import DiskStore
from ...job.schema import Activations
from ...proto import data_pb2
from ...scheduler.workloads.ladder import wire_codec
from ..rounds.protocol.messages import Contribution
from ..rounds.protocol.payloads import contribution_of, pieces_of

Nack = Callable[[int, int, Sequence[int], bool], None]
"""``nack(step, microbatch, samples, anew)`` asks the sender for whole samples. ``anew``: this end has lost its
state."""


MOST_ELEMENTS = 1 << 30
"""An activation whose size is not known yet may have so many elements; a larger one is not decoded."""
NOT_FINITE = Contribution((), (), 0)
"""Sent in place of an activation with NaN or infinity, which codecs refuse, so that later stages drop the step instead
of waiting."""


def stateful(spec: str) -> bool:
    """Whether a codec needs the same state at both ends of a link."""
    return spec.partition(":")[0] == "aqsgd"


def without_state(spec: str) -> str:
    """The codec itself, or, for a codec with state, its stateless replacement with the same number of bits."""
    return f"tile:bits={parse(spec).number('bits')}" if stateful(spec) else spec


def evaluation_codec(activations: Activations, precision: str = "fp32") -> str:
    """The codec of activations in evaluations: none, or bf16 if training compresses activations or computes in bf16."""
    return wire_codec("none" if activations.forward == "none" else "bf16", precision)


class Outgoing:
    """The sending side of a stage: activations to the next stage, gradients to the one before."""

    def __init__(
        self,
        activations: Activations,
        seed: int,
        sender: Sender | None,
        forward: str = "",
        backward: str = "",
        precision: str = "fp32",
    ) -> None:
        """``forward``, ``backward``: the plan's codecs of the links to the stage after and before; empty: the job's.
        ``precision``: the job's ``train.precision``."""
        self.sender = sender
        self.forward_codec = compress.make(wire_codec(without_state(forward or activations.forward), precision))
        """The codec without state: used where the codec is not AQ-SGD, or where AQ-SGD did not pay."""
        self.backward_codec = compress.make(wire_codec(backward or activations.backward, precision))
        self.plain_codec = compress.make(evaluation_codec(activations, precision))
        self.seed = seed
        self.trouble = ""
        self._scaled = precision == "fp16"
        """Gradients are those of a scaled loss, and may overflow now and then."""

    def forward(self, step: int, microbatch: int, samples: Sequence[int], output: Tensor) -> Contribution:
        """The message with the output [b, ...] of a microbatch; NOT_FINITE if the output is not finite."""
        if not self._finite(output, step, "output"):
            return NOT_FINITE
        if self.sender is not None:
            output = output.to(self.sender.device)  # the device of its state, which may be too large for a GPU
            return contribution_of([self.sender.encode((step, microbatch), samples, output)])
        return contribution_of([self.forward_codec.encode(output, seed=self._seed(microbatch, 0), step=step)])

    def backward(self, step: int, microbatch: int, gradient: Tensor) -> Contribution:
        """The message with the gradient of the stage's input; NOT_FINITE if the gradient is not finite."""
        if not self._finite(gradient, step, "gradient"):
            return NOT_FINITE
        return contribution_of([self.backward_codec.encode(gradient, seed=self._seed(microbatch, 1), step=step)])

    def plain(self, output: Tensor) -> Contribution:
        """The message with the output of a validation microbatch."""
        if not self._finite(output, 0, "output"):
            return NOT_FINITE
        return contribution_of([self.plain_codec.encode(output)])

    def again(self, step: int, microbatch: int, samples: Sequence[int], anew: bool) -> Contribution:
        """The answer to a NACK: these samples of the microbatch, whole. ``anew``: the receiver has lost its state."""
        if self.sender is None:
            raise compress.CodecError("a NACK came to a stage whose codec keeps no state")
        if anew:  # else the receiver would ask for each sample, a round trip in every microbatch of an epoch
            self.sender.forget_committed()
        return contribution_of([self.sender.resend((step, microbatch), samples)])

    def commit(self, step: int, microbatch: int) -> None:
        """The microbatch's gradient has come back: the receiver has taken the activations into its state."""
        if self.sender is not None:
            self.sender.commit((step, microbatch))

    def _finite(self, values: Tensor, step: int, what: str) -> bool:
        if bool(torch.isfinite(values).all()):
            return True
        if what != "gradient" or not self._scaled:
            self.trouble = f"the {what} of step {step} is not finite"
        return False

    def verdict(self) -> str | None:
        """Why the codec does not pay on this link, in a sentence; None while it does."""
        return self.sender.verdict() if self.sender is not None else None

    def keep_no_state(self) -> None:
        """Call it between two steps: from now on activations are encoded without state. The receiver notices by the
        codec of the first message."""
        if self.sender is not None:
            self.sender.clear()
            self.sender = None

    def _seed(self, microbatch: int, direction: int) -> int:
        return (self.seed << 17 ^ microbatch << 1 ^ direction) & (2**63 - 1)


def notes_of(links: Sequence[Outgoing]) -> dict[str, Any]:
    """Statistics of AQ-SGD on a node's links, for people; empty without AQ-SGD."""
    counters = [link.sender.counters for link in links if link.sender is not None and link.sender.counters.samples]
    if not counters:
        return {}
    hit_rate = sum(one.hit_rate for one in counters) / len(counters)
    return {"aqsgd_hit_rate": round(hit_rate, 4), "aqsgd_nacks": sum(one.nacks for one in counters)}


class Incoming:
    """The receiving side of a stage."""

    def __init__(self, receiver: Receiver | None, nack: Nack) -> None:
        self.receiver = receiver
        self.nack = nack
        self.limit = MOST_ELEMENTS
        """The most elements that the next message may have."""

    def forward(self, sent: data_pb2.Activation, payload: npt.NDArray[np.uint8]) -> Tensor | None:
        """The output of the stage before; None if this end lacks samples, which it then has asked the sender for."""
        if self.receiver is None or not sent.sizes:
            return _decoded(sent, payload, self.limit)
        blob = _only_piece(sent, payload)
        if not stateful(str(open_blob(blob)[0].spec)):  # the sender has found that AQ-SGD does not pay
            self.receiver.clear()
            return compress.decode(blob, limit=self.limit)
        got = self.receiver.receive((sent.step, sent.microbatch), blob)
        if got.values is None:
            self.nack(sent.step, sent.microbatch, got.missing, self.receiver.anew)
        return got.values

    def backward(self, sent: data_pb2.Activation, payload: npt.NDArray[np.uint8]) -> Tensor:
        """The gradient of this stage's output."""
        return _decoded(sent, payload, self.limit)

    def plain(self, sent: data_pb2.Activation, payload: npt.NDArray[np.uint8]) -> Tensor:
        """A validation microbatch from the stage before."""
        return _decoded(sent, payload, self.limit)

    def commit(self, step: int, microbatch: int) -> None:
        """The microbatch's gradient is sent back, which tells the sender that its message was used."""
        if self.receiver is not None:
            self.receiver.commit((step, microbatch))


class AqsgdEnds:
    """The AQ-SGD ends of a node, kept across views as long as a link has the same two nodes and the same layers."""

    def __init__(self, spec: str, memory: int, disk: int = 0) -> None:
        """``memory``, ``disk``: bytes that all ends of the node may keep; least recently used samples are dropped."""
        self.spec, self.memory, self.disk = spec, memory, disk
        self._senders: dict[tuple[str | None, int], Sender] = {}
        self._given_up: set[tuple[str | None, int]] = set()
        self._receivers: dict[tuple[str | None, int], Receiver] = {}

    def sender(self, after: str | None, boundary: int, spec: str = "") -> Sender | None:
        """The end towards the stage after, which begins at layer ``boundary``; None if the link has no state. ``spec``:
        the plan's codec for this link; empty: the job's."""
        key = (after, boundary)
        if after is None or not stateful(self.spec) or key in self._given_up:
            return None
        if spec and not stateful(spec):
            self._senders.pop(key, None)  # the receiver drops its state at the first message without
            return None
        if key not in self._senders:
            self._senders[key] = Sender(self.spec, disk=self._room())
        self._senders[key].rollback_all()
        return self._senders[key]

    def receiver(self, before: str | None, boundary: int) -> Receiver | None:
        """The end towards the stage before; this stage begins at layer ``boundary``."""
        key = (before, boundary)
        if before is None or not stateful(self.spec):
            return None
        if key not in self._receivers:
            self._receivers[key] = Receiver(self.spec, disk=self._room())
        self._receivers[key].rollback_all()
        return self._receivers[key]

    def give_up(self, after: str | None, boundary: int) -> None:
        """AQ-SGD does not pay on the link to the stage after: this node does not use it there again."""
        self._given_up.add((after, boundary))
        self._senders.pop((after, boundary), None)

    def keep(self, links: Collection[tuple[str | None, int]]) -> None:
        """Drop the ends of all links but ``links``, and divide memory and disk among the ends of these."""
        self._senders = {key: end for key, end in self._senders.items() if key in links}
        self._receivers = {key: end for key, end in self._receivers.items() if key in links}
        ends = [*self._senders.values(), *self._receivers.values()]
        for end in ends:
            end.max_bytes = self.memory // len(ends)
            if end.disk is not None:
                end.disk.max_bytes = self.disk // len(ends)

    def trouble(self) -> str:
        """A sentence on the disk's first error; empty without an error."""
        ends = [*self._senders.values(), *self._receivers.values()]
        return next((end.disk.problem for end in ends if end.disk is not None and end.disk.problem), "")

    def _room(self) -> DiskStore | None:
        return DiskStore(self.disk) if self.disk else None


def _decoded(sent: data_pb2.Activation, payload: npt.NDArray[np.uint8], limit: int) -> Tensor:
    if not sent.sizes:
        return torch.full(tuple(sent.shape), torch.nan)
    return compress.decode(_only_piece(sent, payload), limit=limit)


def _only_piece(sent: data_pb2.Activation, payload: npt.NDArray[np.uint8]) -> bytes | memoryview:
    pieces = list(pieces_of(payload.data, sent.sizes))
    if len(pieces) != 1:
        raise compress.CodecError(f"an activation of {len(pieces)} pieces")
    return pieces[0]
