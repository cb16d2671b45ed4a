"""GPU tensors from end to end, on a device that refuses what CUDA refuses: no codec, hook or optimiser mixes places."""

from collections.abc import Iterator
from types import SimpleNamespace

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
    state, memory = ddp.State(spec), Feedback(spec)
    for step in range(2):
        buffer = torch.randn(640, device=FAR)
        bucket = SimpleNamespace(
            buffer=lambda b=buffer: b, parameters=lambda: parameters, index=lambda: 0, is_last=lambda: True
        )
        assert state.submit(bucket).wait().device == FAR
        pending = memory.begin({"w": buffer}, 1, step)
        assert not pending.refused and pending.decoded["w"].device == FAR and memory.commit(pending)
    state.load_state_dict(SimpleNamespace(named_parameters=list), {"step": 3, "errors": {}, "memories": {}})


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
