"""A text that a pipeline writes while it trains: `farflung generate STATE PROMPT` where no machine holds the model.

The first stage chooses a step S that no later stage can have finished (the next step, or the run's last) and announces
it at once (TEXT_BEGIN, from stage to stage, before the activations of that step on each link). At the end of S each
stage builds a second copy of itself with the reference's values: so all stages compute the text with the weights of one
step, and the modules that train are not touched. It costs one copy of the stage's weights (fp32) while the text lasts.

For every token, all the text so far passes through the stages, without gradients, autocast or codec, and the last stage
draws the token; there is no key-value cache. A stage computes at most one pass each time that it handles messages,
between the actions of its step: training goes on, a little slower.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ....proto import control_pb2, data_pb2
from ....proto.messages import bodies
from ...context import ROUND, URGENT
from ...device.probe import free_memory
from ...generation.sampling import next_token, window_start
from ...models.definition import LanguageModel
from ...models.stage import StageModel
from ..member.view_member import ViewMember

AHEAD = 2
"""The most steps by which the stage before may be ahead of this one."""


class StageTexts:
    """One stage's part in texts, one text at a time."""

    def __init__(self, view: ViewMember, stage: int, definition: LanguageModel) -> None:
        row, stages = view.plan.pipelines[view.pipeline], view.plan.stages
        self._view, self._layers, self._names = view, stages[stage], row
        self._definition = definition
        self.first_layer = stages[stage][0]
        self._rows = int(definition.config.vocab_size)
        self._before = row[stage - 1] if stage else None
        self._after = row[stage + 1] if stage + 1 < len(row) else None
        self._after_layer = stages[stage + 1][0] if stage + 1 < len(row) else 0
        self._asked: control_pb2.Write | None = None
        """First stage: a text that waits for the end of a step."""
        self._forget()

    def _forget(self) -> None:
        """Reset: there is no text, or it is over."""
        self._number = self._step = self._round = self._done = self._start = self._left = 0
        self._temperature = 0.0
        self._generator = torch.Generator()
        self._tokens: list[int] = []
        self._inputs: Tensor | None = None
        self._model: StageModel | None = None

    @property
    def can_compute(self) -> bool:
        """Whether a pass waits to be computed."""
        return self._model is not None and self._inputs is not None

    # ---- what is said to this stage --------------------------------------------------------

    def order(self, write: control_pb2.Write) -> None:
        """The coordinator orders a text, or the end of one. Only the first stage gets the order."""
        if write.tokens:
            self._end(self._number)
            if max(write.prompt, default=self._rows) >= self._rows:
                self._report(control_pb2.Written(number=write.number, failed="the prompt is not of the model's tokens"))
                return
            self._asked = write
            if self._view.is_done:
                self.boundary(self._view.step)
        elif self._asked is not None and self._asked.number == write.number:
            self._asked = None
        else:
            self._end(write.number)

    def handle(self, sender: str, said: bodies.TextBody, payload: npt.NDArray[np.uint8]) -> None:
        """Handle a message of another stage. ValueError: it is not valid."""
        if sender != (self._names[-1] if isinstance(said, data_pb2.TextToken) else self._before):
            raise ValueError("it is not from a neighbour of that stage")
        if isinstance(said, data_pb2.TextBegin):
            self._begin(said)
        elif isinstance(said, data_pb2.TextEnd):
            if self._is_open(said.number):
                self._end(self._number)
        elif self._is_next(said):
            if isinstance(said, data_pb2.Text):
                self._inputs = self._activation(said, payload)
            else:
                self._token(said.token)

    def _is_open(self, number: int) -> bool:
        """Whether the text ``number`` is the present one and not over here."""
        return number == self._number != 0

    def _is_next(self, sent: data_pb2.Text | data_pb2.TextToken) -> bool:
        """Whether this is the text's next message. False: the text is over here. ValueError: another message is
        next."""
        if not self._is_open(sent.number):
            return False
        if sent.done != self._done or self._inputs is not None:
            raise ValueError(f"token {sent.done} where {self._done} is next")
        return True

    def _begin(self, text: data_pb2.TextBegin) -> None:
        """The stage before has announced a text; announce it to the next stage."""
        step, view = text.step, self._view
        if not text.number or not 0 <= text.temperature < math.inf:
            raise ValueError("it has no number or temperature")
        if not view.passed + (not view.is_done) <= step <= view.step + AHEAD:
            raise ValueError(f"the end of step {step} in step {view.step + 1}")
        self._forget()
        self._number, self._step, self._temperature = text.number, step, text.temperature
        self._generator.manual_seed(text.seed % 2**63)
        self._say_begin(text.seed)
        if view.is_done:
            self.boundary(view.step)

    def _activation(self, sent: data_pb2.Text, payload: npt.NDArray[np.uint8]) -> Tensor:
        shape, width = tuple(sent.shape), int(self._definition.config.hidden_size)
        if len(shape) != 3 or shape[0] != 1 or not 0 < shape[1] <= self._definition.longest or shape[2] != width:
            raise ValueError(f"an activation of shape {shape[:4]}")
        if payload.nbytes != 4 * math.prod(shape):
            raise ValueError(f"{payload.nbytes} bytes of an activation of shape {shape}")
        return torch.from_numpy(payload.copy().view(np.float32)).view(shape)

    def _token(self, token: int) -> None:
        """The last stage has drawn the next token."""
        if token >= self._rows:
            raise ValueError(f"it is none of {self._rows} tokens")
        self._take(token)

    def _take(self, token: int) -> None:
        self._tokens.append(token)
        self._report(control_pb2.Written(number=self._number, token=token, step=self._step, round=self._round))
        self._left -= 1
        if self._left:
            self._done += 1
            self._look()
        else:
            self._end(self._number)

    # ---- what this stage does --------------------------------------------------------------

    def boundary(self, step: int) -> None:
        """A step has ended, or this stage is idle after the last one: g has the same round on all stages."""
        view = self._view
        if self._asked is not None:
            write, self._asked = self._asked, None
            self._forget()
            self._number, self._left, self._tokens = write.number, write.tokens, list(write.prompt)
            self._step, self._temperature = min(step + 1, view.last_step), write.temperature
            self._generator.manual_seed(write.seed % 2**63)
            self._say_begin(write.seed)
            self._look()
        if self._number and self._step == step and self._model is None:
            self._build()

    def _say_begin(self, seed: int) -> None:
        text = data_pb2.TextBegin(
            number=self._number, layer=self._after_layer, step=self._step, temperature=self._temperature, seed=seed
        )
        # Urgent, so that the activations of a step do not overtake it.
        self._tell(data_pb2.Header(kind=data_pb2.TEXT_BEGIN, text_begin=text), URGENT)

    def _build(self) -> None:
        """Build a second copy of the stage, with the present weights of g."""
        view = self._view
        device, limit = view.context.device, view.resources.owner.limits.memory
        names, frozen = set(self._definition.parameter_names(*self._layers)), dict(view.state.frozen())
        values = {
            name: part
            for section in view.state.sections.values()
            for name, part in section.layout.views(section.g)
            if name in names
        }
        needed = 4 * sum(part.numel() for part in values.values())
        free = free_memory(device)
        if needed > min(free, limit or free):
            self._fail(f"it has no room for a second copy of its stage, {needed / 1e9:.3g} GB")
            return
        self._round = max(section.round for section in view.state.sections.values())
        try:
            model = self._definition.build(*self._layers, device).eval()
            for name, parameter in model.named_parameters():
                # Frozen parameters never change, so both copies share them.
                parameter.data = values[name].to(device, copy=True) if name in values else frozen[name]
        except torch.OutOfMemoryError:
            self._fail("its device has no room for a second copy of its stage")
            return
        self._model = model

    def work(self) -> bool:
        """Compute a pass, if one waits. Returns whether one did."""
        model, inputs = self._model, self._inputs
        if model is None or inputs is None:
            return False
        self._inputs = None
        try:
            with torch.no_grad(), self._view.context.clock.span("a text's token"):
                output = model(inputs.to(self._view.context.device))
            if model.is_last:
                self._draw(output[0, -1])
            else:
                self._pass_on(output)
        except torch.OutOfMemoryError:
            self._fail("its device has no room for the text's activations")
        except ValueError as problem:
            self._fail(str(problem))
        return True

    def _draw(self, logits: Tensor) -> None:
        token = next_token(logits, self._temperature, self._generator)
        if self._before is None:
            self._take(token)
            return
        drawn = data_pb2.TextToken(number=self._number, done=self._done, token=token)
        self._done += 1
        header = data_pb2.Header(kind=data_pb2.TEXT_TOKEN, text_token=drawn)
        self._view.context.send(self._names[0], header, b"", ROUND)

    def _pass_on(self, hidden: Tensor) -> None:
        text = data_pb2.Text(number=self._number, layer=self._after_layer, done=self._done, shape=hidden.shape)
        if self._before is not None:
            self._done += 1
        header = data_pb2.Header(kind=data_pb2.TEXT, text=text)
        self._tell(header, ROUND, hidden.float().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)

    def _look(self) -> None:
        """First stage: set the tokens of the next pass."""
        self._start = window_start(self._start, len(self._tokens), self._definition.longest)
        self._inputs = torch.tensor([self._tokens[self._start :]])

    def _end(self, number: int) -> None:
        if number and number == self._number:
            end = data_pb2.TextEnd(number=number, layer=self._after_layer)
            self._tell(data_pb2.Header(kind=data_pb2.TEXT_END, text_end=end), ROUND)
            self._forget()

    def _fail(self, why: str) -> None:
        self._report(control_pb2.Written(number=self._number, failed=why))
        self._end(self._number)

    # ---- small things ----------------------------------------------------------------------

    def _tell(self, header: data_pb2.Header, priority: int, payload: memoryview | bytes = b"") -> None:
        """Send a message of the text to the next stage, if there is one."""
        if self._after is not None:
            self._view.context.send(self._after, header, payload, priority)

    def _report(self, written: control_pb2.Written) -> None:
        self._view.context.report(control_pb2.Report(written=written))
