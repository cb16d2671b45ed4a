"""GPU tensors from end to end, on a device that refuses what CUDA refuses: no codec, hook or optimiser mixes places."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from far_device import FAR, Far, far_device

from farflung import compress
from farflung.compress import ddp
from farflung.compress.optimizers import Lamb, OneBitAdam, ZeroOneAdam
from farflung.compress.stateful.aqsgd import Receiver, Sender
from farflung.compress.stateful.feedback import Feedback

SPECS = [*compress.names(), "int8:rounding=nearest", "cocktail:values=log", "eden:bits=1.5", "eden:bits=0.5"]
SPECS += ["turboquant:kind=prod", "avq:rotate=true", "quicfl:shared=false", "sign:scale=two", "qsgd:norm=l2"]


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FARFLUNG_KERNELS", "0")
    with far_device():
        yield


def test_the_device_refuses_what_cuda_refuses() -> None:
    x, y = torch.ones(4, device=FAR), torch.ones(4)
    assert isinstance(x, Far) and x.device == FAR and y.device.type == "cpu" and (x + x).device == FAR
    assert x.cpu().device.type == "cpu" and y.to(FAR).device == FAR and x.to("cpu").device.type == "cpu"
    for mix in (lambda: x + y, lambda: torch.where(x > 0, y, x), lambda: x.mul_(y), lambda: torch.cat([x, y])):
        with pytest.raises(RuntimeError, match="and of the CPU in one call"):
            mix()
    with pytest.raises(TypeError, match="numpy"):
        x.numpy()
    x += 1
    x[torch.tensor([1])] = x[torch.tensor([0])] * torch.tensor(3.0)
    assert x.tolist() == [2, 6, 2, 2] and y.copy_(x).tolist() == [2, 6, 2, 2] and len({x: 1, y: 2}) == 2


@pytest.mark.parametrize("spec", SPECS)
def test_codecs(spec: str) -> None:
    x = torch.randn(30, 20, generator=torch.Generator().manual_seed(0))
    codec, far = compress.make(spec), x.to(FAR)
    blob = codec.encode(far, seed=3, step=1)
    near = compress.decode(codec.encode(x, seed=3, step=1))
    y = compress.decode(blob, FAR)
    assert y.device == FAR and torch.allclose(y.cpu(), near, rtol=1e-4, atol=1e-4)
    total, into = torch.ones(600, device=FAR), torch.empty(600, device=FAR)
    compress.add(blob, total, 0.5)
    compress.decode_into(blob, into)
    assert torch.equal(into, y.view(-1)) and compress.norm(blob, 600, FAR) == pytest.approx(float(y.norm()), rel=1e-4)


@pytest.mark.parametrize("spec", [*(one for one in SPECS if one != "powersgd"), "int4:scale=32", "nvfp4:scale=up"])
def test_the_bytes_are_those_of_the_cpu(spec: str) -> None:
    """Divisions too: CUDA multiplies by the reciprocal of a number, so codecs divide by a tensor. PowerSGD's factors
    are matrix products, whose last bit is the device's own."""
    codec = compress.make(spec)
    for seed in range(10):
        x = torch.randn(600, generator=torch.Generator().manual_seed(seed))
        assert codec.encode(x.to(FAR), seed=3, step=1) == codec.encode(x, seed=3, step=1)


@pytest.mark.parametrize("spec", SPECS)
def test_exchanges(spec: str) -> None:
    x = [torch.randn(30, 20, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    weights = [1.0, 2.0, 1.0]
    mean = compress.simulate(spec, [one.to(FAR) for one in x], seed=3, weights=weights).mean
    near = compress.simulate(spec, x, seed=3, weights=weights).mean
    assert mean.device == FAR and torch.allclose(mean.cpu(), near, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("spec", ["sign", "eden:bits=2", "powersgd", "cocktail:random=0.5", "rotq", "thc"])
def test_hooks_and_feedback(spec: str) -> None:
    parameters = [torch.zeros(20, 30, device=FAR), torch.zeros(40, device=FAR)]
    state, memory = There(spec), Feedback(spec)
    for step in range(2):
        buffer = torch.randn(640, device=FAR)
        assert state.submit(bucket_of(buffer, parameters)).wait().device == FAR
        pending = memory.begin({"w": buffer}, 1, step)
        assert not pending.refused and pending.decoded["w"].device == FAR and memory.commit(pending)
    state.load_state_dict(SimpleNamespace(named_parameters=list), {"step": 3, "errors": {}, "memories": {}})


class There(ddp.State):
    """Its thread, too, has the far device."""

    def _run(self, job: Any) -> None:
        with far_device():
            super()._run(job)


def bucket_of(buffer: torch.Tensor, parameters: list[torch.Tensor], last: bool = True) -> SimpleNamespace:
    return SimpleNamespace(buffer=lambda: buffer, parameters=lambda: parameters, index=lambda: 0, is_last=lambda: last)


class Recorded:
    """A stream that writes down who does what: the marks of the caller, and what runs after them."""

    notes: ClassVar[list[tuple[str, str, Any]]] = []

    def __init__(self, device: torch.device) -> None:
        assert device == FAR

    def mark(self) -> int:
        self.notes.append(("mark", threading.current_thread().name, len(self.notes)))
        return len(self.notes) - 1

    @contextmanager
    def after(self, mark: int, *used: torch.Tensor) -> Iterator[None]:
        self.notes.append(("after", threading.current_thread().name, (mark, used[0])))
        yield
        self.notes.append(("end", threading.current_thread().name, mark))

    def future(self) -> torch.futures.Future[torch.Tensor]:
        return torch.futures.Future()


def test_buckets_are_exchanged_on_a_stream_beside_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook returns before a bucket is exchanged; the exchange runs in another thread, after what had been started
    when the hook was called, and gives its result there."""
    monkeypatch.setattr(ddp, "Side", Recorded)
    Recorded.notes.clear()
    gate, state = threading.Event(), There("eden:bits=2")
    exchange = state._exchange

    def held(*job: Any) -> torch.Tensor:
        assert gate.wait(60)
        return exchange(*job)

    monkeypatch.setattr(state, "_exchange", held)
    parameters = [torch.zeros(20, 30, device=FAR)]
    buffers = [torch.randn(600, device=FAR) for _ in range(2)]
    futures = [state.submit(bucket_of(b, parameters, last=place == 1)) for place, b in enumerate(buffers)]
    assert not any(future.done() for future in futures)  # the backward pass goes on
    gate.set()
    assert all(future.wait().device == FAR for future in futures)
    here, there = threading.current_thread().name, "farflung-ddp"
    marks = [note for note in Recorded.notes if note[0] == "mark"]
    assert [note[1] for note in marks] == [here, here]
    begun = [note for note in Recorded.notes if note[0] == "after"]
    assert [note[1] for note in begun] == [there, there]
    assert [note[2][0] for note in begun] == [note[2] for note in marks]
    assert all(note[2][1] is buffer for note, buffer in zip(begun, buffers, strict=True)) and state.step == 1


def test_restored_errors_go_where_the_gradients_are() -> None:
    near, state = torch.nn.Parameter(torch.zeros(600)), There("powersgd")
    first = There("powersgd")
    first.submit(bucket_of(torch.randn(600), [near])).wait()
    model = SimpleNamespace(named_parameters=lambda: [("w", near)])
    state.load_state_dict(model, first.state_dict(model))
    assert state.submit(bucket_of(torch.randn(600, device=FAR), [near])).wait().device == FAR
    assert state._errors[near].device == FAR


@pytest.mark.parametrize("kind", [OneBitAdam, ZeroOneAdam, Lamb])
def test_optimisers(kind: type) -> None:
    p = torch.randn(40, device=FAR)
    options = {} if kind is Lamb else {"freeze_step": 2}
    optimiser = kind([torch.nn.Parameter(p, requires_grad=False)], lr=0.1, **options)
    own = optimiser.param_groups[0]["params"][0]
    before = own.tolist()
    for _ in range(5):
        own.grad = torch.randn(40, device=FAR)
        optimiser.step()
    assert own.tolist() != before and optimiser.state_dict()["shared"]["m"].device == FAR


def test_activations() -> None:
    sender, receiver = Sender("aqsgd", device=FAR), Receiver("aqsgd", device=FAR)
    x = torch.randn(2, 100, device=FAR)
    for visit in range(2):
        got = receiver.receive(visit, sender.encode(visit, [1, 2], x + 0.01 * visit))
        assert got.values is not None and got.values.device == FAR
        sender.commit(visit)
        receiver.commit(visit)
