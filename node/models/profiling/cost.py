"""What a job's model costs, layer by layer: ``python -m farflung.node.models.profiling.cost``, a separate process.

The coordinator never imports torch; it starts this program and talks JSON with it. Standard input:
``{"job": JOB, "vocabulary": N | null}``, the job as `Job.model_dump_json` writes it, and the tokenizer's size.
Standard output: a `Profile`, or ``{"error": ..., "hint": ...}`` with exit status 2. Nothing else is printed there.
A pretrained folder is checked completely, without reading its weights; a ``build`` is imported and tried out.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Sequence

import torch
from pydantic import ValidationError
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ....job.data.facts import LayerProfile, Profile
from ....job.schema import Job
from ....proto.errors import OWN, FarflungError
from ....scheduler.workloads.decoders import (
    FORMULAS,
    Shape,
    decoder_layers,
    decoding_beside,
    frozen_working,
    shape_of,
    temporary_of,
)
from ....scheduler.workloads.workload import Layer
from ..builds import SequentialModel, build_data
from ..classifier import AdaptedClassifier, ClassifierModel
from ..decoders.families import DEFAULT_CONTEXT
from ..decoders.matrix_plan import can_share
from ..definition import LanguageModel, ModelDefinition
from ..factory import model_of
from ..lora import LoraModel, is_adapter
from ..own_code import own_code
from ..preferences import PreferenceModel
from ..quantised import packed_size
from ..subspace import SubspaceModel
from ..weights.pretrained import check, weights_of
from .kept import Kept
from .measured import Cost, measure, measure_pieces


def profile(job: Job, vocabulary: int | None) -> Profile:
    """The profile of a job's model; FarflungError for everything that is wrong with the model, its folder or build.

    ``vocabulary`` is the tokenizer's size (None for ``data.build``). Flops are those of forward and backward pass
    together, the backward pass counted as twice the forward pass; recomputation is not counted.
    """
    if job.model.parameters is not None:
        return own_profile(job.model.parameters, job.data.samples)
    definition = definition_of(job, vocabulary)
    data = build_data(job) if job.data.build is not None else None
    if isinstance(definition, LanguageModel):
        if data is not None:
            raise FarflungError(
                "data.build gives tensors, but the model is a language model, which needs text",
                hint="give [data] text and a tokenizer, or [model] build",
            )
        if (weights := weights_of(job, None)) is not None:
            check(definition, weights, str(job.model.pretrained))
        context = job.model.context or min(definition.longest, DEFAULT_CONTEXT)
        layers = language_layers(definition, context, job.train.precision)
    else:
        assert isinstance(definition, SequentialModel)
        if data is None:
            raise FarflungError(
                "not yet: model.build together with text", hint='write build = "module:function" under [data]'
            )
        layers = sequential_layers(definition, data[0], str(job.model.build))
    return Profile(
        layers=layers,
        tied=definition.tied_trained is not None,
        family=definition.family,
        documents=not isinstance(definition, LanguageModel) or definition.anatomy.documents,
        balance=definition.balance if isinstance(definition, LanguageModel) else 0.0,
        shares=can_share(definition.config) if type(definition) is LanguageModel else 0,
        samples=len(data[0][0]) if data else None,
        validation_samples=len(data[1][0]) if data else None,
        own=own_code(job, definition, data if job.data.where == "coordinator" else None),
    )


def definition_of(job: Job, vocabulary: int | None) -> ModelDefinition:
    """The definition of a job's model for a tokenizer's ``vocabulary``, without weights. FarflungError for everything
    that is wrong with the model itself."""
    return model_of(_with_vocabulary(job, vocabulary), None)


def own_profile(parameters: int, samples: int | None) -> Profile:
    """The profile of a model that only the members know: one layer, with the flops of using each weight once a sample.

    Only the ratios of the nodes' speeds matter to its plan, and those are measured.
    """
    layer = LayerProfile(
        name="model", parameters=parameters, flops_per_sample=6.0 * parameters, activation_elements_per_sample=0
    )
    return Profile(layers=[layer], tied=False, family="own", samples=samples, validation_samples=0)


def language_layers(definition: LanguageModel, context: int, precision: str = "fp32") -> list[LayerProfile]:
    """The layers' cost for samples of ``context`` tokens, by counting.

    A matrix of n weights costs 2n flops per token forward; attention 4 t d per token (scores and values over the whole
    window, as most kernels compute the masked half too). See Kaplan et al. 2020, 2.1. Flops count only the experts that
    a token is routed to; parameters count all experts.
    """
    if isinstance(definition, LoraModel):
        return _lora_layers(definition, context, precision)
    width = handed_on = int(definition.config.hidden_size)
    last, sent = len(definition.layers) - 1, context + definition.beside(context)
    plain = definition
    if isinstance(definition, SubspaceModel):  # its backward pass keeps about as much as for the whole hidden state
        plain, handed_on = LanguageModel(definition.config), definition.rank
    counted = counted_layers(plain, context, precision)
    logits = 2 * context * int(definition.config.vocab_size)  # and their gradient
    profiles = []
    for layer, name in enumerate(definition.layers):
        names = definition.parameter_names(layer, layer)
        weights = sum(math.prod(definition.shapes[each]) for each in names)
        one = counted[layer]
        if layer == 0:
            forward = 2.0 * context * width  # a look-up: copied, not multiplied
        elif definition.family in FORMULAS:
            forward = 2.0 * context * weights + (4.0 * context * context * width if layer < last else 0.0)
        else:
            forward = one.flops
        profiles.append(
            LayerProfile(
                name=name,
                parameters=weights,
                largest_elements=_largest(definition, layer),
                frozen=sum(math.prod(definition.frozen[each]) for each in definition.frozen_names[layer]),
                flops_per_sample=3 * forward,
                activation_elements_per_sample=sent * handed_on if layer < last else 0,
                stored_elements_per_sample=one.stored,
                copied_elements=one.copies,
                working_elements_per_sample=one.working if isinstance(one, Layer) else logits * (layer == last),
            )
        )
    return profiles


def counted_layers(definition: LanguageModel, context: int, precision: str) -> Sequence[Layer | Cost]:
    """The memory that each layer keeps: by the scheduler's formula if it has one for the family, else by computing the
    layer once on the meta device."""
    if definition.family in FORMULAS:
        return decoder_layers(shape_of(definition.config.to_dict(), context), precision)
    return measure(definition, context, precision)


def _lora_layers(definition: LoraModel, context: int, precision: str) -> list[LayerProfile]:
    """The base's layers, with the embedding in the first block's layer and the head in the last one's. The backward
    pass computes no gradients of frozen weights, so it costs as much as the forward pass."""
    # Beside a base of any kind the same is kept, but for autocast's copies of its matrices in fp32.
    lora = definition.lora.model_copy(update={"base": "fp32"})
    plain: LanguageModel
    adapted: LoraModel
    if isinstance(definition, AdaptedClassifier):
        plain = ClassifierModel(definition.config, definition.names)
        adapted = AdaptedClassifier(definition.config, definition.names, lora)
    else:
        plain, adapted = LanguageModel(definition.config), LoraModel(definition.config, lora)
    whole = language_layers(plain, context, precision)
    heads = {name: math.prod(shape) for name, shape in definition.shapes.items() if not is_adapter(name)}
    # With pairs of answers a stage also computes the reference's forward pass, and sends both hidden states.
    twice = isinstance(definition, PreferenceModel)
    half = definition.frozen_dtype == torch.bfloat16  # then autocast copies only vectors, which are small
    counted = measure_pieces(adapted, context, precision)
    shape = _widths(definition, context)
    profiles = []
    for layer, name in enumerate(definition.layers):
        last = layer == len(definition.layers) - 1
        parts = whole[layer + (layer > 0) : layer + 2 + last]
        trained = sum(math.prod(definition.shapes[each]) for each in definition.parameter_names(layer, layer))
        head = sum(heads.values()) if last else 0
        packed = definition.packed.intersection(definition.frozen_names[layer])
        sizes = [math.prod(definition.frozen[each]) for each in packed]
        own, ends = counted[layer]
        kept = sum(packed_size(size, definition.lora.base) for size in sizes) / 4
        others = sum(part.parameters for part in parts) - sum(sizes) - head
        profiles.append(
            LayerProfile(
                name=name,
                parameters=trained,
                largest_elements=_largest(definition, layer),
                frozen=round(others * (0.5 if half else 1.0) + kept),
                flops_per_sample=sum(part.flops_per_sample for part in parts) * (1 if twice else 2 / 3)
                + (parts[-1].flops_per_sample / 3 if head else 0.0)
                + 6.0 * context * (trained - head),
                activation_elements_per_sample=0
                if last
                else (context + plain.beside(context)) * int(definition.config.hidden_size) * (1 + twice),
                stored_elements_per_sample=own.stored,
                copied_elements=0 if half or packed else own.copies,
                working_elements_per_sample=context * frozen_working(shape, precision) * (1 + twice),
                temporary_elements=temporary_of(definition.lora.base, max(sizes, default=0), precision),
                decoding_elements_per_sample=own.stored + context * decoding_beside(shape, precision) if packed else 0,
                entry_elements_per_sample=0 if layer else whole[0].activation_elements_per_sample,
                after_elements_per_sample=ends.stored,
                after_working_elements_per_sample=whole[-1].working_elements_per_sample * last * (1 + twice),
                after_copied_elements=0 if half else ends.copies,
            )
        )
    return profiles


def _largest(definition: ModelDefinition, layer: int) -> int:
    """Elements of a layer's largest parameter that trains."""
    return max((math.prod(definition.shapes[one]) for one in definition.parameter_names(layer, layer)), default=0)


def _widths(definition: LanguageModel, context: int) -> Shape:
    """The shape for formulas of a block's working memory; of families that have none, only the widths, as a llama's."""
    config = definition.config
    if definition.family in FORMULAS:
        return shape_of(config.to_dict(), context)
    width, inner = int(config.hidden_size), getattr(config, "intermediate_size", None)
    return Shape("llama", 1, width, context, 1, inner=inner if isinstance(inner, int) else 4 * width)


def sequential_layers(
    definition: SequentialModel, training: tuple[Tensor, Tensor], spec: str, samples: int = 2
) -> list[LayerProfile]:
    """The layers' cost, measured on the first training samples; also tries the loss and the backward pass."""
    inputs, targets = (tensor[:samples] for tensor in training)
    inputs = inputs.float() if inputs.dtype == torch.float64 else inputs
    targets = targets.float() if targets.dtype == torch.float64 else targets
    count = len(inputs)
    last = len(definition.layers) - 1
    stage = definition.build(0, last)
    definition.initialise(stage, 0)
    if definition.drops:
        stage.eval()  # the loss of single samples is compared with that of the batch
    profiles, hidden = [], inputs
    kept = Kept([*stage.parameters(), *stage.buffers()])
    try:
        for layer, name in enumerate(definition.layers):
            before = kept.bytes
            with FlopCounterMode(display=False) as counter, kept.watched():
                hidden = stage.run_layer(layer, hidden)
            if not isinstance(hidden, Tensor) or not hidden.is_floating_point():
                raise FarflungError(
                    f"model.build: layer {name} of {spec} gives no float tensor", hint="hand on one tensor"
                )
            profiles.append(
                LayerProfile(
                    name=name,
                    parameters=sum(
                        math.prod(definition.shapes[each]) for each in definition.parameter_names(layer, layer)
                    ),
                    largest_elements=_largest(definition, layer),
                    flops_per_sample=3.0 * (counter.get_total_flops() + hidden.numel()) / count,
                    activation_elements_per_sample=hidden.numel() // count if layer < last else 0,
                    stored_elements_per_sample=max(1, (kept.bytes - before) // (4 * count)),
                    working_elements_per_sample=2 * hidden.numel() // count,
                )
            )
        total = stage.loss_sum(hidden, targets)
        total.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            alone = [stage.loss_sum(stage(inputs[i : i + 1]), targets[i : i + 1]).item() for i in range(count)]
    except FarflungError:
        raise
    except OWN as error:
        raise FarflungError(
            f"model.build: {spec} fails on the first training samples: {type(error).__name__}: {error}",
            hint="try the model on data.build's tensors",
        ) from error
    if not math.isclose(total.item(), sum(alone), rel_tol=1e-3, abs_tol=1e-6):
        raise FarflungError(
            f"model.build: the loss of {spec} is not a sum over the batch ({total.item():.6g} for {count} samples, "
            f"{sum(alone):.6g} one by one)",
            hint='use reduction="sum"; layers must treat each sample alone',
        )
    return profiles


def _with_vocabulary(job: Job, vocabulary: int | None) -> Job:
    if vocabulary is None or job.model.build is not None:
        return job
    if job.model.vocabulary is not None and job.model.vocabulary < vocabulary:
        raise FarflungError(
            f"model.vocabulary = {job.model.vocabulary}, but the tokenizer has {vocabulary} tokens",
            hint=f"write vocabulary = {vocabulary} or more under [model], or remove it",
        )
    model = job.model.model_copy(update={"vocabulary": job.model.vocabulary or vocabulary})
    return job.model_copy(update={"model": model})


def main() -> int:
    """Reads the request, prints the answer; output of imported modules goes to standard error."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            request = json.load(sys.stdin)
            job = Job.model_validate_json(json.dumps(request["job"]))
            vocabulary = request.get("vocabulary")
            answer, status = profile(job, None if vocabulary is None else int(vocabulary)).model_dump_json(), 0
        except FarflungError as error:
            answer, status = json.dumps({"error": error.message, "hint": error.hint}), 2
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            hint = 'standard input is {"job": JOB, "vocabulary": N | null}'
            answer, status = json.dumps({"error": f"the request can't be read: {error}", "hint": hint}), 2
    sys.stdout.write(answer + "\n")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
