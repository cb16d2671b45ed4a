"""What `farflung plan --memory` says a stage with adapters takes beside a base of each kind, against what torch
allocates for it, within 5 %; and a run's profile against the formulas that plans have."""

import pytest
import transformers
from allocated import peak_of_a_step
from windows import facts_of

from farflung.job.schema import Job
from farflung.node.models.factory import model_of
from farflung.node.models.profiling.cost import language_layers
from farflung.scheduler.workloads.jobs import workload_of
from farflung.scheduler.workloads.memory import need_of

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # peft reads it

CONTEXT, MICROBATCH, WIDTH, VOCABULARY = 64, 2, 256, 512
CUTS = {"whole": (((0, 2),), 0), "first": (((0, 1), (2, 2)), 0), "last": (((0, 0), (1, 2)), 1)}
SHAPES = {
    "gpt2": {"n_embd": WIDTH, "n_layer": 3, "n_head": 2, "n_positions": CONTEXT},
    "llama": {
        "hidden_size": WIDTH,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 384,
        "max_position_embeddings": CONTEXT,
    },
}
HALF, AGAIN = {"precision": "bf16"}, {"precision": "bf16", "recompute": True}
CASES = [
    ("llama", "fp32", "whole", 1, {}, {}),
    ("llama", "bf16", "whole", 1, AGAIN, {}),
    ("llama", "int8", "whole", 1, AGAIN, {}),
    ("llama", "nf4", "last", 2, AGAIN, {}),
    ("llama", "nf4", "whole", 1, AGAIN, {"dora": True}),
    ("llama", "int8", "last", 1, {}, {}),
    ("gpt2", "fp32", "whole", 1, HALF, {}),
    ("gpt2", "bf16", "whole", 1, HALF, {}),
    ("gpt2", "int8", "last", 1, {}, {}),
    ("gpt2", "nf4", "whole", 1, {"precision": "fp16"}, {}),
    ("gpt2", "nf4", "last", 1, AGAIN, {}),
    ("gpt2", "nf4", "first", 2, HALF, {}),
]


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bases")
    for family, shape in SHAPES.items():
        config = transformers.AutoConfig.for_model(
            family, vocab_size=VOCABULARY, bos_token_id=None, eos_token_id=None, **shape
        )
        config.save_pretrained(folder / family)
    return folder


def made(bases, family, base, train, lora):
    job = Job.model_validate(
        {
            "run": {"name": "memory", "steps": 3},
            "model": {
                "pretrained": str(bases / family),
                "context": CONTEXT,
                "lora": {"rank": 4, "base": base, **lora},
            },
            "data": {"text": ["none.txt"]},
            "train": {"batch": 4, "microbatch": MICROBATCH, **train},
        }
    )
    facts = facts_of(samples=8, validation=1, context=CONTEXT, vocabulary=VOCABULARY, steps=3)
    return job, model_of(job, facts), workload_of(job.model_dump(), vocabulary=VOCABULARY)


@pytest.mark.parametrize(("family", "base", "cut", "held", "train", "lora"), CASES)
def test_the_calculator_is_right(bases, family, base, cut, held, train, lora):
    job, definition, workload = made(bases, family, base, train, lora)
    stages, place = CUTS[cut]
    need = need_of(job.model_dump(), workload, stages[place], held, 1)
    assert need.device == pytest.approx(peak_of_a_step(job, definition, stages, place, held, VOCABULARY), rel=0.05)


@pytest.mark.parametrize("family", SHAPES)
@pytest.mark.parametrize(("base", "train"), [("fp32", {}), ("bf16", HALF), ("nf4", HALF)])
@pytest.mark.parametrize("dora", [False, True])
def test_a_run_counts_what_its_plan_counted(bases, family, base, train, dora):
    job, definition, workload = made(bases, family, base, train, {"dora": dora})
    profile = language_layers(definition, CONTEXT, job.train.precision)
    for planned, found in zip(workload.layers, profile, strict=True):
        assert planned.stored == pytest.approx(found.stored_elements_per_sample, rel=0.01)
        assert planned.decoding == pytest.approx(found.decoding_elements_per_sample, rel=0.02)
        assert planned.after == pytest.approx(found.after_elements_per_sample, rel=0.01)
        assert planned.after_copies == pytest.approx(found.after_copied_elements, abs=2)
        others = (planned.copies, planned.working, planned.temporary, planned.entry, planned.after_working)
        assert others == (
            found.copied_elements,
            found.working_elements_per_sample,
            found.temporary_elements,
            found.entry_elements_per_sample,
            found.after_working_elements_per_sample,
        )
