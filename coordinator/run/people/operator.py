"""Handles a person's command from its arrival to the answer, including a plan that the answer may need."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from ....proto.errors import Refused
from ... import events
from ...membership.questions import Answer, Question, Unanswered
from ...membership.state import DONE
from ..context import RunContext
from ..deciding import Deciding
from ..nodes.sessions import Sessions
from ..reports.step_reports import StepReports
from .commands import Command, CommandHandler

log = logging.getLogger(__name__)

Answers = tuple[tuple[Question, Answer], ...]


class Operator:
    """``forget(node)``: deletes what the run holds against a node. ``answer``: makes a plan."""

    def __init__(
        self,
        context: RunContext,
        deciding: Deciding,
        handler: CommandHandler,
        *,
        sessions: Sessions,
        steps: StepReports,
        forget: Callable[[str], None],
        answer: Callable[[Question], Awaitable[Answer]],
    ) -> None:
        self._context, self._deciding, self.handler = context, deciding, handler
        self._sessions, self._steps, self._forget, self._answer = sessions, steps, forget, answer

    def command(self, command: Command, answers: Answers = ()) -> str:
        """Perform a command; the answer is a sentence. Refused or JobError, with a hint, say why it can't be done.
        Unanswered: it needs a plan that is not yet among ``answers``."""
        state, node = self._deciding.state, command.node
        if state.phase == DONE:
            raise Refused(f"the run is over: {state.why}", "start the coordinator again to go on with it")
        if command.kind == "forget" and (node in state.nodes or node in self._deciding.joining):
            raise Refused(f"{node} is in the run", "a name is freed when its node is gone")
        job, facts, asked = self._context.job, self._context.facts, replace(state, answers=answers)
        answer = self.handler.take(command, self._deciding.machine, asked, job, facts, self._steps.reached)
        if command.kind in ("readmit", "forget"):
            self._forget(node)
        if command.kind == "forget":
            self._sessions.forget(node)
        log.info("%s", answer)
        self._context.emit(events.event("notice", message=answer, node=node))
        return answer

    async def commanded(self, command: Command) -> str:
        """``command``, after making the plan that its answer may need."""
        answers: Answers = ()
        while True:
            try:
                return self.command(command, answers)
            except Unanswered as wanted:
                answers = (*answers, (wanted.question, await self._answer(wanted.question)))
