"""How often a round makes the host wait for a device: a number for each section, and not for each of its segments."""

from collections import Counter

import pytest
import torch
from far_device import FAR, far_device, near
from round_group import NUMEL, SHAPES, Group

from farflung import compress
from farflung.compress.blobs.pieces import fetch_packed
from farflung.node.rounds.arithmetic.batches import all_finite
from farflung.node.rounds.protocol import payloads
from farflung.node.state.sections.moments import Kept
from farflung.node.state.sections.section import Layout, Section

HERE = torch.device("cpu")
MEMBERS = 2


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch):
    """They need a real card; with Triton's interpreter tests/compress/kernel_cases.py counts their waits."""
    monkeypatch.setenv("FARFLUNG_KERNELS", "0")


def section_of(number: int, gradient: bool, device: torch.device) -> Section:
    section = Section(Layout.of("stage-0", SHAPES), gradient, Kept(), device, not gradient)
    values = section.grad if gradient else section.x
    values.copy_(torch.randn(NUMEL, generator=torch.Generator().manual_seed(number)))
    section.restart_chain(1, 0)
    return section


def one_round(codec: str, gradient: bool, device: torch.device = FAR) -> tuple[dict[str, Counter[str]], torch.Tensor]:
    """What the host waited for in each part of a round of all members, and the gradient or x of one."""
    waits: Counter[str] = Counter()
    found = {}
    with far_device(waits):
        sections = [section_of(number, gradient, device) for number in range(MEMBERS)]
        group = Group("all_to_all", codec, [1.0, 2.0], sections=sections, gradient=gradient)
        links = group.links.values()
        waits.clear()
        for link in links:
            link.begin()
        found["begin"] = Counter(waits)
        waits.clear()
        group.deliver_all()
        assert all(link.complete for link in links)
        found["arrive"] = Counter(waits)
        waits.clear()
        for link in links:
            if gradient:
                link.place_all()
            else:
                link.exchange.apply_delta(link.updates(), link.results)
        found["apply"] = Counter(waits)
        moved = sections[0].grad if gradient else sections[0].x
    return found, near(moved).clone()


@pytest.mark.parametrize("gradient", [False, True], ids=["delta", "gradient"])
@pytest.mark.parametrize("codec", ["none", "bf16"])
def test_a_round_waits_once_for_all_segments(monkeypatch, codec, gradient):
    found = {}
    for segment in (NUMEL, 8):
        monkeypatch.setattr(payloads, "SEGMENT", segment)
        found[segment], moved = one_round(codec, gradient)
        _, expected = one_round(codec, gradient, HERE)
        assert torch.equal(moved, expected)
    # Encoding: the copy; a gradient is looked at first. Of what arrives the norms: a publisher's of both, else of one.
    assert found[8] == {
        "begin": Counter({"cpu": MEMBERS} | ({"__bool__": MEMBERS} if gradient else {})),
        "arrive": Counter({"tolist": MEMBERS + 1}),
        "apply": Counter(),
    }
    assert found[NUMEL] == found[8]


@pytest.mark.parametrize("codec", ["none", "bf16", "int8"])
def test_a_value_that_is_not_finite_is_refused_in_any_segment(monkeypatch, codec):
    monkeypatch.setattr(payloads, "SEGMENT", 8)
    with far_device() as device:
        section = section_of(0, False, device)
        group = Group("all_to_all", codec, [1.0, 1.0], sections=[section, section_of(1, False, device)])
        section.x[NUMEL - 3] = torch.inf
        with pytest.raises(compress.CodecError, match="not finite"):
            group.links["a"].begin()


def test_a_sum_that_overflows_is_no_value_that_does():
    with far_device() as device:
        large = torch.full((8,), 3e38, device=device)
        packed = compress.make("bf16").stage(torch.full((8,), 3.4e38, device=device)).packed()
        assert fetch_packed([packed])[0] == [None]  # rounds to infinity
        assert all_finite(lambda: [large, large]) and not all_finite(lambda: [large, large / 0])
        assert compress.norm(compress.make("none").encode(large[:1]), 1, device) == pytest.approx(3e38)
        packed = compress.make("none").stage(large).packed()
        assert fetch_packed([packed])[0] == [None]
        assert compress.make("none").encode(large) == compress.make("none").encode(near(large))


def test_blobs_of_the_host_and_of_a_device_are_fetched_together():
    with far_device() as device:
        x = torch.randn(50, generator=torch.Generator().manual_seed(1))
        specs = ["none", "topk", "bf16"]
        packed = [compress.make(spec).stage(x.to(device), 3, 1).packed() for spec in specs]
        blobs, (came,) = fetch_packed(packed, [x.to(device).double()[:3]])
        assert [b"".join(blob or ()) for blob in blobs] == [compress.make(spec).encode(x, 3, 1) for spec in specs]
        assert torch.equal(came, x.double()[:3])
