"""The profile's memory of a layer is what torch keeps of it for the backward pass."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from farflung.node.models.decoders.families import fresh_config
from farflung.node.models.definition import LanguageModel
from farflung.node.models.profiling.cost import language_layers
from farflung.node.models.profiling.kept import Kept

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
CONTEXT, SAMPLES, VOCABULARY = 48, 3, 300


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "qwen2", "gpt_neox"])
def test_what_a_layer_keeps_is_what_torch_keeps(family: str, precision: str) -> None:
    model = SimpleNamespace(family=family, width=128, layers=1, heads=4, kv_heads=2 if "gpt" not in family else None)
    definition = LanguageModel(fresh_config(model, VOCABULARY, CONTEXT))
    ids = torch.randint(0, VOCABULARY, (SAMPLES, CONTEXT))
    for layer, told in enumerate(language_layers(definition, CONTEXT, precision)):
        stage = definition.build(layer, layer)
        definition.initialise(stage, 0)
        kept = Kept([*stage.parameters(), *stage.buffers()])
        inputs = ids if layer == 0 else torch.randn(SAMPLES, CONTEXT, 128, requires_grad=True)
        autocast = contextlib.nullcontext() if precision == "fp32" else torch.autocast("cpu", HALF[precision])
        with autocast, kept.watched():
            output = stage(inputs)
            if stage.is_last:
                output = stage.loss_sum(output, ids)
        assert output.requires_grad
        counted = 4 * (told.stored_elements_per_sample * SAMPLES + told.copied_elements)
        assert counted == pytest.approx(kept.bytes, rel=0.03, abs=2048)


def test_a_storage_counts_once_and_weights_do_not() -> None:
    weight, x = torch.randn(8, 8, requires_grad=True), torch.randn(4, 8, requires_grad=True)
    kept = Kept([weight])
    with kept.watched():
        (x @ weight + (x * x) @ weight.exp()).sum()
    assert kept.bytes == (2 * x.numel() + weight.numel()) * 4
