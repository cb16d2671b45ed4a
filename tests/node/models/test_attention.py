"""Which attention blocks compute with: torch's fused one wherever the family has it, without a mask if the order of the
tokens is all that a mask would say, so that a card may take its fastest kernel; eager where a kernel can't do it."""

import pytest
import torch
from small_models import SMALL
from torch.nn import functional
from transformers import CONFIG_MAPPING

from farflung.job.schema import Job
from farflung.node.models.definition import skeleton_of
from farflung.node.models.factory import model_of

TOKENS = torch.arange(32).reshape(2, 16) % 67


@pytest.fixture
def fused(monkeypatch):
    """(has a mask, causal) of each call of torch's fused attention."""
    calls, usual = [], functional.scaled_dot_product_attention

    def attention(*inputs, attn_mask=None, is_causal=False, **more):
        calls.append((attn_mask is not None, is_causal))
        return usual(*inputs, attn_mask=attn_mask, is_causal=is_causal, **more)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", attention)
    return calls


def stage(family, first=0, last=3, **more):
    shape = {"family": family, "layers": 2, "width": 32, "heads": 4, "context": 16, "vocabulary": 67, **more}
    tables = {"model": shape, "data": {"text": ["none.txt"]}, "train": {"batch": 4, "microbatch": 2}}
    definition = model_of(Job.model_validate(tables), None)
    made = definition.build(first, last)
    definition.initialise(made, 3)
    return made.train()


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "gpt_neox"])
def test_a_stage_computes_with_the_fused_kernel_and_without_a_mask(family, fused):
    made = stage(family)
    fused.clear()  # a definition looks at its model by computing with it
    made(TOKENS).sum().backward()
    assert fused == [(False, True)] * 2


def test_documents_in_a_sample_are_a_mask_and_the_kernel_stays(fused):
    made = stage("llama")
    fused.clear()
    made(TOKENS, torch.tensor([[*range(6), *range(10)]] * 2))
    assert fused == [(True, False)] * 2


def test_dropout_in_attention_is_eager(fused):
    made = stage("gpt2", dropout=0.1).eval()  # a pass that trains needs the keys of what it drops
    fused.clear()
    made(TOKENS)
    assert fused == []


@pytest.mark.parametrize(
    ("family", "changes", "wanted"),
    [
        ("gemma2", {"head_dim": 8}, "eager"),
        ("gemma3_text", {"head_dim": 8}, "sdpa"),
        ("mistral", {"sliding_window": 5}, "sdpa"),
    ],
)
def test_softcaps_are_eager_and_windows_are_not(family, changes, wanted):
    config = CONFIG_MAPPING[family](**SMALL, **changes)
    assert skeleton_of(config).config._attn_implementation == wanted
