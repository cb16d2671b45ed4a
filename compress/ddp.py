"""Any codec in torch's DistributedDataParallel, with no farflung runtime::

    model.register_comm_hook(ddp.State("powersgd:rank=2"), ddp.hook)

torch's own hooks chain collectives in callbacks, whose order differs between ranks: with more than one bucket on gloo
they abort or hang. Here one thread drives the buckets' programs in the order of the buckets, on a group of its own, so
every rank issues the same collectives in the same order, while backward goes on. Error feedback is kept by parameter,
not by bucket (buckets are rebuilt after the first step), and a step's errors are kept only if all its buckets were
finite on all ranks: a step with an overflow gives infinite gradients everywhere, for the loss scaler to see, and
changes no state.
"""

import queue
import threading
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from .codec import make
from .errors import CodecError
from .exchange import collectives
from .exchange.requests import Context, Program
from .gpu.streams import Side
from .primitives.key import mix
from .specs.spec import check_contracts, momentum_word, parse, spec_feedback


class State:
    """The state of a hook: one for each model.

    spec: any codec for gradients. feedback: whether to use error feedback; None: if the codec needs it. group: the
    ranks (default: all); a new group over the same ranks is made, so all ranks must construct a State. start: the
    number of first steps with plain averaging. per_parameter: encode each parameter separately, else each bucket. The
    default is True for powersgd, which factors the parameters' matrices, and for sign, whose single scale must fit a
    layer.
    """

    def __init__(
        self,
        spec: str,
        *,
        feedback: bool | None = None,
        group: Any = None,
        seed: int = 0,
        start: int = 0,
        per_parameter: bool | None = None,
    ) -> None:
        self.codec = make(spec)
        traits = self.codec.traits
        needs = not traits.unbiased and not traits.float_format
        self.feedback = (needs or spec_feedback(parse(spec))) if feedback is None else feedback
        if needs and not self.feedback:
            raise CodecError(f"codec {spec!r} is biased: on gradients it needs error feedback")
        if self.feedback:
            check_contracts(self.codec.spec)
            if word := momentum_word(self.codec.spec):
                warnings.warn(word, RuntimeWarning, stacklevel=2)
        self.per_parameter = self.codec.spec.name in ("powersgd", "sign") if per_parameter is None else per_parameter
        self.seed, self.start, self.step, self.skipped = seed, start, 0, 0
        self.group: Any = None
        self.rank, self.size = 0, 1
        if dist.is_available() and dist.is_initialized():
            self.group = dist.new_group(dist.get_process_group_ranks(group) if group is not None else None)
            self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self._errors: dict[torch.Tensor, torch.Tensor] = {}
        self._memories: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
        self._pending: dict[torch.Tensor, torch.Tensor] = {}
        self._fresh: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
        self._fine = True
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._sides: dict[torch.device, Side] = {}

    # -- one bucket ---------------------------------------------------------------------------------------------

    def submit(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Start a bucket's exchange in the background, in the order of the calls. On a GPU it runs on a stream of its
        own, which waits for the bucket, while the backward pass goes on; the host does not wait."""
        buffer = bucket.buffer()
        side = self._sides.get(buffer.device) or Side(buffer.device)
        self._sides[buffer.device] = side
        future = side.future()
        job = (buffer, list(bucket.parameters()), bucket.index(), bucket.is_last(), future, side, side.mark())
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="farflung-ddp", daemon=True)
            self._thread.start()
        self._queue.put(job)
        return future

    def _work(self) -> None:
        while True:
            self._run(self._queue.get())

    def _run(self, job: Any) -> None:
        buffer, parameters, index, last, future, side, mark = job
        with side.after(mark, buffer):
            try:
                with torch.no_grad():
                    result = self._exchange(buffer, parameters, index)
                if last:
                    self._finish()
                future.set_result(result)
            except BaseException as error:  # the waiting backward raises it
                future.set_exception(error)

    def _exchange(self, buffer: torch.Tensor, parameters: list[torch.Tensor], index: int) -> torch.Tensor:
        if self.step < self.start:
            mean = buffer / self.size
            if self.group is not None:
                dist.all_reduce(mean, group=self.group)
            return mean
        flat = buffer.to(torch.float32)
        if self.feedback:
            flat = flat + torch.cat([self._error(p, flat.device) for p in parameters])
        fine = bool(torch.isfinite(flat).all())
        if not collectives.agree(fine, self.group):
            self._fine = False
            return torch.full_like(buffer, float("inf"))
        sizes = [p.numel() for p in parameters]
        cut = flat.split(sizes)  # type: ignore[no-untyped-call]
        pieces = [f.view(p.shape) for f, p in zip(cut, parameters, strict=True)]
        contexts: list[Context] = []
        programs: list[Program] = []
        for place, x in enumerate(pieces if self.per_parameter else [flat]):
            kept = self._memories.get(parameters[place], {})  # a bucket's: with its first parameter
            memory = {name: value.to(x.device) for name, value in kept.items()}
            tensor = mix(index, place)
            contexts.append(Context(self.seed, tensor, self.step, self.rank, self.size, 1.0, memory))
            programs.append(self.codec.rounds(x, contexts[-1]))
        total = torch.cat([r.reshape(-1) for r in collectives.drive(programs, self.group)])
        if self.feedback:
            own = torch.cat([c.own.reshape(-1) for c in contexts if c.own is not None])
            errors = (flat - own).split(sizes)  # type: ignore[no-untyped-call]
            self._pending.update(zip(parameters, errors, strict=True))
        self._fresh.update({p: c.memory for p, c in zip(parameters, contexts, strict=False) if c.memory})
        return (total / self.size).to(buffer.dtype)

    def _finish(self) -> None:
        """The end of a step: keep its errors if all buckets were finite on all ranks, else drop them."""
        if self._fine:
            self._errors.update(self._pending)
            self._memories.update(self._fresh)
        else:
            self.skipped += 1
            if self.skipped == 1:
                warnings.warn(
                    f"step {self.step}: a gradient was not finite on some rank, so all gradients are infinite on every "
                    "rank. A loss scaler (torch.amp.GradScaler) skips such a step; without one, call optimizer.step() "
                    "only where no gradient is infinite, else the weights become NaN. Later ones are only counted "
                    "(skipped)",
                    RuntimeWarning,
                    stacklevel=1,
                )
        self._pending, self._fresh, self._fine = {}, {}, True
        self.step += 1

    def _error(self, parameter: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A parameter's error on ``device``: the model may have moved since its state was restored."""
        error = self._errors.get(parameter)
        return torch.zeros(parameter.numel(), device=device) if error is None else error.to(device)

    # -- checkpoints --------------------------------------------------------------------------------------------

    def state_dict(self, model: torch.nn.Module) -> dict[str, Any]:
        """This rank's errors by parameter name, and the step. Each rank must save its own."""
        names = {parameter: name for name, parameter in _named(model)}
        errors = {names[p]: e.clone() for p, e in self._errors.items() if p in names}
        memories = {names[p]: {k: v.clone() for k, v in m.items()} for p, m in self._memories.items() if p in names}
        return {"step": self.step, "errors": errors, "memories": memories}

    def load_state_dict(self, model: torch.nn.Module, state: Mapping[str, Any]) -> None:
        """Restore a saved state, also in a group of another size; the errors of ranks that are gone are lost."""
        parameters = dict(_named(model))
        unknown = [name for name in state["errors"] if name not in parameters]
        if unknown:
            raise CodecError(f"the saved state has errors of parameters that the model lacks: {unknown[:3]}")
        self._errors = {parameters[n]: e.to(parameters[n].device, copy=True) for n, e in state["errors"].items()}
        self._memories = {
            parameters[n]: {key: value.to(parameters[n].device) for key, value in m.items()}
            for n, m in state["memories"].items()
            if n in parameters
        }
        self.step = int(state["step"])


def _named(model: torch.nn.Module) -> Any:
    inner = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
    return inner.named_parameters()


def hook(state: State, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """The communication hook: the mean of the ranks' gradients, as the codec gives it."""
    return state.submit(bucket)
