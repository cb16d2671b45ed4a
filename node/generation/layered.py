"""Text from a checkpoint whose model does not fit in memory: each layer is read, computed and dropped in turn.

Every token reads the whole checkpoint again and computes the whole text again (there is no key-value cache), so a token
takes as long as reading the model from the disk. Memory: the largest layer in float32, and the text's activations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from ...proto.errors import FarflungError
from ..models.definition import LanguageModel
from ..models.factory import model_of
from ..models.lora import base_name
from ..models.quantised import fill
from ..models.weights.pretrained import initial_weights, weights_of
from .checkpoint import Checkpoint, check_base, check_whole, open_tensors
from .sampling import next_token, window_start


def tokens_by_layers(checkpoint: Checkpoint, prompt: list[int], seed: int, temperature: float) -> Iterator[int]:
    """The tokens that follow ``prompt``, without end. FarflungError when the checkpoint is damaged."""
    definition = model_of(checkpoint.job, checkpoint.facts)
    assert isinstance(definition, LanguageModel)
    generator = torch.Generator().manual_seed(seed)
    tokens, start = list(prompt), 0
    with ExitStack() as stack, torch.no_grad():
        read = _reader(checkpoint, definition, stack)
        while True:
            start = window_start(start, len(tokens), definition.longest)
            values = torch.tensor([tokens[start:]])
            for layer in range(len(definition.layers)):
                values = _layer(definition, layer, read, (values, torch.tensor([tokens[start:]])))
            try:
                tokens.append(next_token(values[0, -1], temperature, generator))
            except ValueError as error:
                raise FarflungError(
                    f"{checkpoint.folder} writes no text: {error}", hint="use --step with an older checkpoint"
                ) from error
            yield tokens[-1]


def _layer(
    definition: LanguageModel, layer: int, read: Callable[[str], Tensor], given: tuple[Tensor, Tensor]
) -> Tensor:
    inputs, tokens = given
    stage = definition.build(layer, layer).eval()
    for name, parameter in stage.named_parameters():
        values = read(name)
        if parameter.dtype == torch.uint8:
            fill(parameter.data, values)
        else:
            parameter.data = values
    stage.tokens = tokens
    output: Tensor = stage(inputs)
    return output


def _reader(checkpoint: Checkpoint, definition: LanguageModel, stack: ExitStack) -> Callable[[str], Tensor]:
    """A function from a parameter's name to its values, float32: from the checkpoint, or, if the parameter is frozen,
    from the model folder."""
    tensors = open_tensors(checkpoint, stack)
    check_whole(checkpoint, definition, tensors)
    weights = None
    if definition.frozen:
        weights = weights_of(checkpoint.job, None)
        check_base(checkpoint, Path(str(checkpoint.job.model.pretrained)))

    def read(name: str) -> Tensor:
        if name in tensors:
            return tensors[name]().float()
        (values,) = initial_weights(definition, [base_name(name)], 0, weights).values()
        return values

    return read
