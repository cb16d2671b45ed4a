"""Long contexts as models have them: angles that are stretched, and blocks that look back over a window only."""

import pytest
import torch
import transformers

from farflung.coordinator.data.data import model_sizes
from farflung.job.model_folder.positions import longest_of
from farflung.job.schema import Job
from farflung.node.models.factory import model_of
from farflung.node.models.weights import pretrained
from farflung.proto.errors import FarflungError

SHAPE = {
    "vocab_size": 50,
    "bos_token_id": None,
    "eos_token_id": None,
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def saved(folder, family, **changes):
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(family, **{**SHAPE, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    return model.eval()


def job_of(folder, context):
    return Job.model_validate({"model": {"pretrained": str(folder), "context": context}, "data": {"text": ["none"]}})


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        ({"max_position_embeddings": 32768}, 32768),
        ({"n_positions": 1024}, 1024),
        ({}, None),
        ({"max_position_embeddings": 32768, "rope_scaling": {"type": "yarn", "factor": 4.0}}, 131072),
        ({"max_position_embeddings": 32, "rope_parameters": YARN}, 128),
        # already counted in, as in models that were trained so
        ({"max_position_embeddings": 128, "rope_scaling": YARN}, 128),
        ({"max_position_embeddings": 2048, "rope_scaling": {"type": "linear", "factor": 8}}, 16384),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8}}, 131072),
        ({"max_position_embeddings": 64, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 64),
    ],
)
def test_how_long_a_text_may_be(config, longest):
    assert longest_of(config) == longest


@pytest.mark.parametrize(
    ("family", "context", "changes"),
    [
        ("mistral", 32, {"sliding_window": 5}),
        ("qwen2", 32, {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 2}),
        ("qwen2", 96, {"rope_parameters": {**YARN, "rope_theta": 1e4}}),
        ("llama", 96, {"rope_parameters": {**YARN, "rope_theta": 1e4}}),
    ],
)
def test_the_same_numbers_as_transformers(tmp_path, family, context, changes):
    model = saved(tmp_path, family, **changes)
    job = job_of(tmp_path, context)
    definition = model_of(job, None)
    ids = torch.arange(2 * context).reshape(2, context) % 50
    hidden = ids
    for first, last in ((0, 2), (3, 5)):
        stage = definition.build(first, last)
        names = definition.parameter_names(first, last)
        weights = pretrained.initial_weights(definition, names, 0, pretrained.weights_of(job, None))
        stage.load_state_dict(weights, strict=True)
        hidden = stage(hidden)
    torch.testing.assert_close(hidden, model(ids).logits, rtol=0, atol=2e-6)
    assert model_sizes(job, None)[0] == context


def test_a_context_beyond_the_stretched_one_is_refused(tmp_path):
    saved(tmp_path, "qwen2", rope_parameters={**YARN, "rope_theta": 1e4})
    with pytest.raises(FarflungError, match="longest is 128"):
        model_of(job_of(tmp_path, 129), None)
    with pytest.raises(FarflungError, match="more than the 128 positions"):
        model_sizes(job_of(tmp_path, 129), None)
