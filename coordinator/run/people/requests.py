"""Requests of people to the training nodes: a profile of their next steps, or a text. One of each at a time."""

from __future__ import annotations

from ....job.data.tokenizer import Tokenizer
from ....proto import control_pb2 as pb
from ....proto.errors import Refused
from ....proto.messages.trace import MOST_STEPS
from ...membership.signals import Announcement
from ...membership.state import TRAINING
from ..context import RunContext
from ..deciding import Deciding
from ..nodes.streams import Streams
from ..reports.step_reports import StepReports
from .profiling import Profiling
from .texts import Text, check_wanted, ends_of


class Requests:
    """``profiling`` and ``text`` are the ones in progress, else None."""

    def __init__(self, context: RunContext, deciding: Deciding, streams: Streams, steps: StepReports) -> None:
        self._context, self._deciding, self._streams, self._steps = context, deciding, streams, steps
        self.profiling: Profiling | None = None
        self.text: Text | None = None
        self._texts = 0

    def profile(self, steps: int) -> Profiling:
        """Make the training nodes record their next steps. Refused says why not."""
        view = self._training_view("farflung status says more; try again later")
        if self.profiling is not None:
            raise Refused("another profile of this run is being taken", "wait until it is written")
        if not 1 <= steps <= MOST_STEPS:
            raise Refused(f"{steps} steps cannot be recorded", f"--steps: 1 to {MOST_STEPS}")
        streams = (self._streams.get(name) for name in view.plan.nodes)
        nodes = {stream.name: stream.session for stream in streams if stream is not None}
        seconds = self._steps.step_seconds
        self.profiling = Profiling(nodes, steps, self._steps.reached, seconds, self._streams.tell)
        return self.profiling

    def write(self, request: pb.GenerateRequest, tokenizer: Tokenizer) -> Text:
        """Make a pipeline generate a text while it trains. Refused says why not."""
        job = self._context.job
        check_wanted(request, job)
        view = self._training_view("take the newest checkpoint: --through model or --through layers")
        if self.text is not None:
            raise Refused("another text of this run is being written", "try again when it is done")
        self._texts += 1
        self.text = Text(
            self._texts,
            view.number,
            view.plan.pipelines[0],
            request=request,
            tokenizer=tokenizer,
            ends=ends_of(job, tokenizer),
            step_s=self._steps.step_seconds,
            tell=self._streams.tell,
        )
        return self.text

    def end_text(self) -> None:
        """The caller has gone: stop the text."""
        if self.text is not None:
            self.text.end()
            self.text = None

    def check_text(self) -> None:
        """A text ends with the view whose nodes write it."""
        state = self._deciding.state
        trained = state.view.number if state.phase == TRAINING and state.view is not None else None
        if self.text is not None and self.text.view != trained:
            self.text.fail(state.why)

    def _training_view(self, instead: str) -> Announcement:
        """The view that trains. Refused, with what to do ``instead``: none does."""
        state = self._deciding.state
        if state.phase != TRAINING or state.view is None:
            raise Refused(f"the run does not train now: {state.why}", instead)
        return state.view
