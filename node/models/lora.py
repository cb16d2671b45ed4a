"""LoRA (Hu et al. 2021) through the library `peft`: ``[model.lora]`` of the job.

Chosen matrices W of a pretrained model's blocks get two small matrices A and B beside them; such a layer computes
x W + alpha / rank (x A) B. Only A and B are parameters of the run: they alone train, travel in rounds and are stored in
checkpoints, and with them the head where the task is classification. The model folder's other weights, the base, are
frozen: one node of each stage reads them from the
coordinator, the others fetch them from that node or from another that holds the layer (node/state/transfers/base.py).
With ``dora`` a magnitude for each row of W trains too (magnitude.py).
Every node reports a hash of its base: a node with another base is put out.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor, nn

from ...job.tables.model import Lora
from ...proto.errors import FarflungError
from .definition import LanguageModel, ModelDefinition, generator
from .magnitude import VECTORS, add_magnitudes, merged_rows
from .quantised import CODES, fill, pack_layers
from .stage import LanguageStage

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"


class LoraModel(LanguageModel):
    """A pretrained language model whose parameters are its adapters.

    A layer is a block; the first layer also has the embedding, and the last the head. So every stage has parameters
    that train.
    """

    starts_from_folder = False
    purpose = "CAUSAL_LM"
    """What `peft` calls the task."""

    def __init__(self, config: Any, lora: Lora, recompute: bool = False, balance: float = 0.0) -> None:
        self.lora = lora
        super().__init__(config, recompute, self._changed, balance)
        wrapped, last = self._pieces, len(self.layers) - 1
        count = last - 1
        frozen = [set[str]() for _ in range(count)]
        for piece, found in enumerate(wrapped):
            layer = min(max(piece - 1, 0), count - 1)
            frozen[layer] |= {base_name(name) for name in found if not self.trains(name)}
        self.frozen_names = frozen
        names = [[name for name in one if self.trains(name)] for one in wrapped[1:last]]
        names[-1] += [name for name in wrapped[last] if self.trains(name)]
        everything = self._everything
        super(LanguageModel, self).__init__(list(self.layers[1:last]), names, recompute)
        self.shapes = {name: shape for name, shape in everything.items() if self.trains(name)}
        self.frozen = {base_name(name): shape for name, shape in everything.items() if not self.trains(name)}
        self.frozen_dtype = torch.bfloat16 if lora.base == "bf16" else torch.float32
        self.packed: set[str] = set()
        """Names of the frozen parameters that are kept in 8 or 4 bits per weight."""
        if lora.base in CODES:
            for index in range(count):
                inside = pack_layers([self._block(index)], lora.base)
                self.packed |= {base_name(f"{self._block_path(index)}.{name}") for name in inside}
        if lora.base in CODES and not self.packed:
            raise FarflungError(
                f"model.lora.base: no linear layer of the family {self.family!r} can be kept in {lora.base}",
                hint='write base = "bf16" under [model.lora]',
            )
        self.adapted = {name.partition(".lora_A.")[0] for name in self.shapes if ".lora_A." in name}
        """Paths of the modules that have an adapter."""

    @property
    def stored(self) -> Mapping[str, tuple[int, ...]]:
        return self.frozen

    @property
    def whole(self) -> tuple[str, ...]:
        """The modules outside of the blocks that train whole, as `peft` names them: its ``modules_to_save``."""
        return ()

    def trains(self, name: str) -> bool:
        """Whether a parameter trains."""
        return is_adapter(name)

    def _changed(self, model: nn.Module) -> None:
        add_adapters(model, self.lora, self.whole)

    def build(self, first: int, last: int, device: torch.device | str = "cpu") -> LanguageStage:
        """The stage of layers [first, last]; all values are undefined, those of frozen parameters too."""
        whole = len(self.layers) - 1
        stage = super().build(first + (first > 0), last + 1 + (last == whole), device)
        stage.first, stage.last = first, last
        return stage

    def initial(self, name: str, seed: int) -> Tensor:
        """Initial value of an adapter as in `peft`: A uniform within +-1 / sqrt(inputs), B zero, so that training
        starts from the base. Magnitudes are 1 here; a run's begin with the base's (`first_magnitudes`)."""
        shape = self.shapes[name]
        if is_magnitude(name):
            return torch.ones(shape)
        if ".lora_B." in name:
            return torch.zeros(shape)
        bound = 1 / math.sqrt(shape[1])
        values = generator(seed, name).random(shape, dtype=np.float32)
        return torch.from_numpy((2 * values - 1) * np.float32(bound))

    def merged(self, name: str, base: Tensor, adapter: Callable[[str], Tensor]) -> Tensor:
        """The frozen parameter ``name``, of values ``base``, with its adapter added, float32. ``adapter(name)``: the
        values of an adapter's matrix."""
        path = name.removesuffix(".weight")
        if path not in self.adapted or path == name:
            return base.float()
        down, up = (adapter(f"{path}.lora_{one}.default.weight") for one in "AB")
        delta = (up @ down) * (self.lora.alpha / (math.sqrt(self.lora.rank) if self.lora.rslora else self.lora.rank))
        transposed = _transposed(self.skeleton)
        rows = (base.float().T if transposed else base.float()) + delta
        if self.lora.dora:
            rows = merged_rows(rows, adapter(f"{path}.{VECTORS}.default.weight"))
        return rows.T if transposed else rows


def is_adapter(name: str) -> bool:
    """Whether a parameter is one of an adapter."""
    return ".lora_A." in name or ".lora_B." in name or is_magnitude(name)


def is_magnitude(name: str) -> bool:
    """Whether a parameter is the magnitudes of a matrix's rows (DoRA)."""
    return f".{VECTORS}." in name


def base_name(name: str) -> str:
    """The model folder's name of a parameter of the base."""
    return name.replace(".base_layer.", ".")


def load_frozen(stage: nn.Module, read: Callable[[str], Tensor]) -> dict[str, int]:
    """Sets a stage's frozen parameters to their values, ``read`` by their names in the model folder. Returns the digest
    of each by that name."""
    digests = {}
    with torch.no_grad():
        for name, parameter in stage.named_parameters():
            if not parameter.requires_grad:
                values = read(base_name(name))
                fill(parameter, values)
                values = parameter.detach().cpu() if parameter.dtype == torch.uint8 else values.float()
                raw = values.contiguous().view(-1).view(torch.uint8).numpy().data
                digests[base_name(name)] = xxhash.xxh3_64_intdigest(raw)
    return digests


def base_digests(definition: ModelDefinition, layers: Iterable[int], digests: Mapping[str, int]) -> dict[int, int]:
    """For each of ``layers`` one digest of all its frozen parameters, made from the parameters' ``digests`` by name. It
    does not depend on the cut into stages."""
    found = {}
    for layer in layers:
        listed = "".join(f"{name} {digests[name]:016x}\n" for name in sorted(definition.frozen_names[layer]))
        found[layer] = xxhash.xxh3_64_intdigest(listed.encode())
    return found


def add_adapters(model: Any, lora: Lora, whole: Sequence[str] = ()) -> None:
    """Puts adapters beside the target modules of a `transformers` model on the meta device, and freezes the rest.
    ``whole``: modules that get no adapters, as they train themselves; freezing them too is undone by the caller."""
    import transformers

    peft = _peft()
    family = str(model.config.model_type)
    kinds = (nn.Linear, transformers.pytorch_utils.Conv1D)
    head = model.get_output_embeddings()
    outside = re.compile(rf"(.*\.)?({'|'.join(whole)})(\..*)?") if whole else None
    paths = [path for path, module in model.named_modules() if isinstance(module, kinds) and module is not head]
    matrices = {path.rpartition(".")[2]: None for path in paths if not (outside and outside.fullmatch(path))}
    for target in lora.targets or ():
        if target not in matrices:
            near = difflib.get_close_matches(target, matrices, 1, 0.5)
            nearest = f"; did you mean {near[0]!r}?" if near else ""
            raise FarflungError(
                f"model.lora.targets: no layer of the family {family} is called {target!r}{nearest}",
                hint=f"the layers that take an adapter are: {', '.join(matrices)}",
            )
    try:
        config = _config(lora, _transposed(model))
        if outside and any(outside.fullmatch(one) and one.rpartition(".")[2] in (lora.targets or ()) for one in paths):
            config.exclude_modules = outside.pattern
        peft.inject_adapter_in_model(config, model, low_cpu_mem_usage=True)
        if lora.dora:
            add_magnitudes(model, _transposed(model))
    except ValueError as error:
        raise FarflungError(
            f"[model.lora] can't be put beside the layers of the family {family}: {error}",
            hint=f"write targets under [model.lora], some of: {', '.join(matrices)}",
        ) from error


def write_adapter(
    definition: LoraModel, tensors: Mapping[str, Callable[[], Tensor]], base: str, folder: Path
) -> dict[str, Tensor]:
    """Writes adapter_config.json for the model folder ``base``. Returns the tensors of adapter_model.safetensors, under
    the names that `peft` reads."""
    config = _config(definition.lora, _transposed(definition.skeleton))
    config.target_modules = sorted({path.rpartition(".")[2] for path in definition.adapted})
    config.base_model_name_or_path, config.inference_mode = base, True
    config.task_type, config.modules_to_save = definition.purpose, list(definition.whole) or None
    config.save_pretrained(folder)
    stored = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    stored["target_modules"] = config.target_modules  # `peft` writes a set, which has no order
    (folder / ADAPTER_CONFIG).write_text(json.dumps(stored, indent=2, sort_keys=True), encoding="utf-8")
    return {f"base_model.model.{_exported(name)}": tensors[name]() for name in definition.shapes}


def _exported(name: str) -> str:
    """The name that `peft` gives an adapter's parameter in files."""
    return name.replace(".default.weight" if is_magnitude(name) else ".default", "")


def _transposed(model: Any) -> bool:
    """Whether the model's layers keep their matrices transposed, as GPT-2's do."""
    import transformers

    return any(isinstance(module, transformers.pytorch_utils.Conv1D) for module in model.modules())


def _config(lora: Lora, transposed: bool) -> Any:
    return _peft().LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,
        use_rslora=lora.rslora,
        use_dora=lora.dora,
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets) if lora.targets else None,
        fan_in_fan_out=transposed,
    )


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise FarflungError(
            "[model.lora] needs the library peft, which is not installed here", hint="pip install 'farflung[lora]'"
        ) from error
    return peft
