"""A node's neighbours in its pipeline: keeps their messages until they are taken, and sends messages to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from ...proto import data_pb2
from ...proto.messages import bodies
from ..context import URGENT, NodeContext
from ..rounds.protocol.messages import Contribution
from ..rounds.protocol.outlet import ENOUGH
from .chunk import Chunk

MAIL_KINDS = {data_pb2.ACTIVATION, data_pb2.ACTIVATION_GRADIENT, data_pb2.EVALUATION}
AHEAD = 2
"""The most steps by which a neighbour may be ahead of this node."""
Waits = Callable[[Callable[[], Collection[str]]], AbstractContextManager[None]]
"""``waits(peers)``: a context in which this node waits for the nodes that ``peers()`` returns."""


class Mail(NamedTuple):
    """A message of one of ``MAIL_KINDS``."""

    kind: int
    sent: data_pb2.Activation
    payload: npt.NDArray[np.uint8]


class Neighbours:
    """The neighbours of one node in one view. A receive waits for the message of one step, microbatch and border."""

    def __init__(self, context: NodeContext, waits: Waits, size: int) -> None:
        """``size``: samples of the smallest microbatch of this pipeline."""
        self._context, self.waits, self._size = context, waits, size
        self.chunks: Sequence[Chunk] = ()
        """This node's stages, once they are built."""
        self._mail: dict[tuple[int, int, int, int], Mail] = {}

    # ---- what arrives ----------------------------------------------------------------------

    def deliver(
        self, sender: str, kind: int, sent: data_pb2.Activation, payload: npt.NDArray[np.uint8], step: int
    ) -> None:
        """Keep a message of one of ``MAIL_KINDS``; refuse it if this node expects no such message. ``step``: the last
        step that is finished here."""
        if self._expects(sender, kind, sent, step):
            self._mail[kind, sent.step, sent.microbatch, sent.layer] = Mail(kind, sent, payload)
        else:
            self._context.refuse(sender, f"an activation of step {sent.step} that nobody waits for")

    def _expects(self, sender: str, kind: int, sent: data_pb2.Activation, step: int) -> bool:
        """Whether an activation comes from the neighbour that sends this kind, for a step that is near."""
        evaluation = kind == data_pb2.EVALUATION
        facts = self._context.facts
        most = facts.evaluated + self._size * len(facts.sets)  # each set may end with an incomplete microbatch
        samples = most if evaluation else self._context.job.train.batch
        near = step <= sent.step <= step + AHEAD
        return (sender, sent.layer) in self._ends(kind) and near and sent.microbatch * self._size < samples

    def _ends(self, kind: int) -> set[tuple[str | None, int]]:
        """(neighbour, border) of each link on which messages of this kind arrive."""
        if kind == data_pb2.ACTIVATION_GRADIENT:
            return {(chunk.after, chunk.model.last + 1) for chunk in self.chunks}
        return {(chunk.before, chunk.model.first) for chunk in self.chunks}

    def has(self, kind: int, step: int, microbatch: int, layer: int) -> bool:
        """Whether ``take`` would return at once."""
        return (kind, step, microbatch, layer) in self._mail

    def take(self, kind: int, step: int, microbatch: int, layer: int) -> Mail:
        """Wait for a message. ``layer``: the border, that is the first layer of the later stage. Raises ViewEnds."""
        key = (kind, step, microbatch, layer)
        if key not in self._mail:
            what = f"wait for {bodies.kind_name(kind)}"
            senders = {name for name, border in self._ends(kind) if name is not None and border == layer}
            with self._context.clock.span(what, microbatch), self.waits(lambda: senders):
                while key not in self._mail:
                    self._context.pump(0.2)
        return self._mail.pop(key)

    def spoiled(self, node: str, why: str) -> NoReturn:
        """A neighbour's message is not valid: without it the step cannot end, so refuse it and wait for a view change.
        Raises ViewEnds."""
        self._context.refuse(node, why, ENOUGH)
        with self._context.clock.span("wait for a view"), self.waits(lambda: (node,)):
            while True:
                self._context.pump(0.05)

    # ---- what goes out ---------------------------------------------------------------------

    def send(self, to: str, header: data_pb2.Header, payload: Sequence[bytes] | memoryview) -> None:
        """Send an activation or a gradient."""
        self._context.send(to, header, payload, URGENT)

    def ask_again(
        self, before: str | None, layer: int, step: int, microbatch: int, samples: Iterable[int], anew: bool
    ) -> None:
        """Ask the stage before for whole samples, which this end of a link of AQ-SGD lacks (`Incoming`)."""
        asked = data_pb2.MissingSamples(step=step, microbatch=microbatch, layer=layer, samples=samples, anew=anew)
        self._context.send(before or "", data_pb2.Header(kind=data_pb2.NACK, missing_samples=asked), b"", URGENT)

    def send_again(self, sender: str, asked: data_pb2.MissingSamples) -> None:
        """Send the stage after whole samples of a microbatch, which its end of a link of AQ-SGD lacks."""
        for chunk in self.chunks:
            if chunk.after == sender and chunk.model.last + 1 == asked.layer:
                again = chunk.outgoing.again(asked.step, asked.microbatch, list(asked.samples), asked.anew)
                answer = activation_header(data_pb2.ACTIVATION, asked.step, asked.microbatch, asked.layer, again, ())
                self.send(sender, answer, again.payload)


def activation_header(
    kind: data_pb2.Kind,
    step: int,
    microbatch: int,
    layer: int,
    encoded: Contribution,
    shape: Sequence[int],
    *,
    loss_scale: float = 0.0,
) -> data_pb2.Header:
    """The header of a message with an encoded activation or gradient. ``layer``: the first layer of the later stage.
    ``shape``: the shape of the values; it is sent only if they were not finite and the payload is empty.
    ``loss_scale``: fp16's factor on the loss, in a gradient."""
    sent = data_pb2.Activation(step=step, microbatch=microbatch, layer=layer, loss_scale=loss_scale)
    sent.sizes.extend(encoded.sizes)
    if not encoded.sizes:
        sent.shape.extend(shape)
    return data_pb2.Header(kind=kind, activation=sent)
