import math
from collections.abc import Collection

import numpy as np
import pytest
import torch

from farflung.compress import CodecError, Spec, make, simulate
from farflung.compress.primitives.key import Key
from farflung.compress.summable.secure import Client, recover, share, total
from farflung.compress.summable.summed import Summed


def secure_sum(
    spec: str | Spec,
    tensors: list[torch.Tensor],
    threshold: int,
    lost: Collection[int] = (),
    seed: int = 0,
    step: int = 0,
) -> torch.Tensor:
    """A whole secure exchange in this process: the sum of the tensors of the workers that are not ``lost`` (by place),
    who go after they have handed out their shares. Every codec with ``sum_bits`` will do."""
    codec = make(spec)
    if not isinstance(codec, Summed):
        raise CodecError(f"codec {str(codec.spec)!r} can't be masked: its encodings are no integers that add up")
    size = len(tensors)
    statistics = torch.stack([codec.statistic(t.reshape(-1).float()) for t in tensors])
    agreed = statistics.amax(0) if codec.statistic_op == "max" else statistics.sum(0)
    bits = codec.sum_bits(size)
    clients = {i: Client(i, size, threshold, bits) for i in range(1, size + 1)}
    keys = {i: c.keys() for i, c in clients.items()}
    sealed = {i: c.shares(keys) for i, c in clients.items()}
    masked, levels = {}, 0
    for i, client in clients.items():
        client.accept({other: boxes[i] for other, boxes in sealed.items() if other != i})
        if i - 1 not in lost:
            encoded = codec.levels(tensors[i - 1].reshape(-1).float(), agreed, Key(seed, step, i), size)
            levels = encoded.numel()
            masked[i] = client.masked(encoded)
    revealed = {i: clients[i].reveal(set(masked)) for i in masked}
    summed = total(masked, revealed, keys, clients, threshold, bits)
    assert len(summed) == levels and math.ceil(math.log2(codec.top * size + 1)) <= bits
    whole = torch.from_numpy(summed.astype(np.int64)).to(torch.int32)
    return codec.restore(whole, agreed, Key(seed, step), len(masked), tensors[0].numel()).view(tensors[0].shape)


@pytest.mark.parametrize("spec", ["global_qsgd:bits=8", "thc", "intsgd:rule=max"])
@pytest.mark.parametrize("lost", [(), (1,), (0, 3)])
def test_the_sum_of_those_who_stay(spec: str, lost: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(600) for _ in range(5)]
    true = sum(t for i, t in enumerate(tensors) if i not in lost)
    result = secure_sum(spec, tensors, threshold=3, lost=lost)
    assert (result - true).norm() < (0.2 if spec == "thc" else 0.05) * true.norm()


def test_masks_change_nothing() -> None:
    tensors = [torch.randn(200) for _ in range(4)]

    codec = make("global_qsgd:bits=8")
    assert isinstance(codec, Summed)
    agreed = torch.stack([codec.statistic(t) for t in tensors]).amax(0)
    plain = sum(codec.levels(t, agreed, Key(0, 0, i + 1), 4) for i, t in enumerate(tensors))
    assert torch.equal(secure_sum("global_qsgd:bits=8", tensors, 3), codec.restore(plain, agreed, Key(), 4, 200))
    assert simulate("global_qsgd:bits=8", tensors).mean.shape == (200,)


def test_below_the_threshold_the_sum_is_lost() -> None:
    with pytest.raises(CodecError):
        secure_sum("global_qsgd", [torch.randn(10)] * 5, threshold=4, lost=(0, 1))
    with pytest.raises(CodecError, match="more than half"):
        Client(1, 4, 2, 10)
    with pytest.raises(CodecError, match="can't be masked"):
        secure_sum("eden", [torch.randn(10)] * 3, threshold=2)


def test_what_the_owner_sees_of_one_worker_is_noise() -> None:
    """The same levels, masked twice: uniform, and different."""
    levels = torch.zeros(20_000, dtype=torch.int32)
    seen = []
    for _ in range(2):
        clients = {i: Client(i, 3, 2, 10) for i in (1, 2, 3)}
        keys = {i: c.keys() for i, c in clients.items()}
        boxes = {i: c.shares(keys) for i, c in clients.items()}
        clients[1].accept({2: boxes[2][1], 3: boxes[3][1]})
        seen.append(clients[1].masked(levels))
    assert (seen[0] != seen[1]).mean() > 0.99
    assert abs(np.bincount(seen[0] >> 7, minlength=8) / 20_000 - 1 / 8).max() < 0.01


def test_a_client_reveals_once_and_opens_only_its_own_box() -> None:
    clients = {i: Client(i, 3, 2, 10) for i in (1, 2, 3)}
    keys = {i: c.keys() for i, c in clients.items()}
    boxes = {i: c.shares(keys) for i, c in clients.items()}
    with pytest.raises(CodecError, match="can't be opened"):
        clients[1].accept({2: boxes[2][3]})
    clients[1].accept({2: boxes[2][1], 3: boxes[3][1]})
    clients[1].reveal({1, 2})
    with pytest.raises(CodecError):
        clients[1].reveal({1, 3})


def test_shares() -> None:
    shares = share(123456789, 3, [1, 2, 5, 7])
    assert recover({k: shares[k] for k in (2, 5, 7)}) == 123456789
    assert recover({k: shares[k] for k in (2, 7)}) != 123456789
