"""One `farflung generate --through nodes`: a pipeline generates a text, and its tokens are decoded as they arrive."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from ....job.data.tokenizer import Tokenizer
from ....job.data.tokenizer_folder import model_ends
from ....job.schema import Job
from ....proto import control_pb2 as pb
from ....proto.errors import Refused
from ....proto.words.border import printable

MOST_TOKENS, MOST_LETTERS = 100_000, 100_000
LEAST_S, STEPS_OF_PATIENCE = 60.0, 20
"""Seconds that a token may take; long, because generation starts at the end of a step and has lower priority than
training."""
CONTEXT = 16
"""Earlier tokens that are decoded together with the new ones: a token's text may depend on its predecessors."""
LONGEST_LETTER = 16
"""Most tokens of one character that are waited for before it is shown incomplete."""
UNFINISHED = "\ufffd"
"""The decoded text of tokens that end inside a character."""

Tell = Callable[[str, pb.Order], None]
"""``tell(node, order)``"""


def check_wanted(request: pb.GenerateRequest, job: Job) -> None:
    """Refused: no pipeline of this run can generate this text."""
    if job.model.build is not None or job.model.parameters is not None:
        raise Refused("the model of this run is no language model", "get its weights with farflung export")
    if job.train.task == "classification":
        raise Refused("this run trains a classifier, which names a text's class", "get it with farflung export")
    if not job.updates.agreed:
        raise Refused(
            "the nodes of this run have weights of their own (updates.agreed = false)",
            "farflung generate --through model takes the newest checkpoint",
        )
    if not request.prompt:
        raise Refused("the prompt is empty", "give at least one word to go on from")
    if len(request.prompt) > MOST_LETTERS:
        raise Refused(f"the prompt has {len(request.prompt)} letters", f"give at most {MOST_LETTERS}")
    if not 1 <= request.tokens <= MOST_TOKENS:
        raise Refused(f"{request.tokens} tokens cannot be added", f"--tokens: 1 to {MOST_TOKENS}")
    if not 0 <= request.temperature < math.inf:
        raise Refused(f"{request.temperature} is no temperature", "--temperature: 0 or more")


def ends_of(job: Job, tokenizer: Tokenizer) -> frozenset[int]:
    """The tokens that end a text of the job's model: those named in its folder, and the token that ends a training
    document."""
    ends = [] if job.model.pretrained is None else model_ends(Path(job.model.pretrained))
    return frozenset(ends if tokenizer.end is None else [*ends, tokenizer.end])


class Text:
    """From the request to the last token. Lives on the coordinator's event loop."""

    def __init__(
        self,
        number: int,
        view: int,
        pipeline: Sequence[str],
        *,
        request: pb.GenerateRequest,
        tokenizer: Tokenizer,
        ends: frozenset[int],
        step_s: float,
        tell: Tell,
    ) -> None:
        """``pipeline``: its nodes, in stage order; ``ends``: tokens that end a text; ``step_s``: seconds of a step."""
        prompt = tokenizer.prompt(request.prompt)
        if not prompt:
            raise Refused("the prompt is empty", "give at least one word to go on from")
        self.number, self.view, self.row = number, view, tuple(dict.fromkeys(pipeline))
        self._tokenizer, self._ends, self._tell, self._prompt = tokenizer, ends, tell, prompt
        self._patience = LEAST_S + STEPS_OF_PATIENCE * step_s
        self._order = pb.Write(
            number=number,
            view=view,
            prompt=prompt,
            tokens=request.tokens,
            temperature=request.temperature,
            seed=request.seed,
        )
        self._left = request.tokens
        self._heard: asyncio.Queue[pb.Written] = asyncio.Queue()

    def wrote(self, name: str, written: pb.Written) -> None:
        """A node's report about a text. Tokens count only from the pipeline's first node, a failure from any of its
        nodes."""
        if written.number != self.number or name not in self.row:
            return
        if written.failed:
            self.fail(f"{name} cannot write it: {printable(written.failed)}")
        elif name == self.row[0] and self._left:
            self._left -= 1
            self._heard.put_nowait(written)

    def fail(self, why: str) -> None:
        """No more tokens will come."""
        self._heard.put_nowait(pb.Written(failed=why))

    def end(self) -> None:
        """The caller has gone."""
        self._tell(self.row[0], pb.Order(write=pb.Write(number=self.number, view=self.view)))

    async def parts(self) -> AsyncIterator[pb.GenerateReply]:
        """The text as it grows."""
        self._tell(self.row[0], pb.Order(write=self._order))
        tokens = list(self._prompt)
        # Only the new tokens and CONTEXT before them are decoded: a node may send any number of tokens at any rate.
        begin, said = max(0, len(tokens) - CONTEXT), len(tokens)
        for left in reversed(range(self._order.tokens)):
            try:
                written = await asyncio.wait_for(self._heard.get(), self._patience)
            except (TimeoutError, asyncio.TimeoutError):
                written = pb.Written(failed=f"{self.row[0]} sent no token within {self._patience:.0f} s")
            if written.failed:
                yield pb.GenerateReply(refused=f"the text broke off: {written.failed}\n{_AGAIN}")
                return
            over = not left or written.token in self._ends
            if written.token not in self._ends:
                tokens.append(written.token)
            await asyncio.sleep(0)  # lets other tasks run, also where all tokens are there at once
            new = self._tokenizer.text(tokens[begin:])[len(self._tokenizer.text(tokens[begin:said])) :]
            if new.endswith(UNFINISHED) and not over and len(tokens) - said < LONGEST_LETTER:
                continue  # the rest of the character comes with the next token
            yield pb.GenerateReply(text=new, nodes=self.row, step=written.step, round=written.round)
            begin, said = max(0, said - CONTEXT), len(tokens)
            if over:
                return


_AGAIN = "type it again; or take the newest checkpoint with --through model or --through layers"
