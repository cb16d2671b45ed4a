"""The tables ``[model]`` and ``[model.lora]``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from .kinds import Code, Count, Table, choice, listed

FAMILIES = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "olmo2", "smollm3", "granite", "phi3", "gpt_neox")

SUBSPACE_FAMILIES = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3", "gpt_neox")
"""Families whose blocks add the product of a matrix to the hidden state directly."""


class Lora(Table):
    """``[model.lora]``: adapters, small matrices beside some matrices of a pretrained model; only they train and are
    sent."""

    rank: Count = Field(default=8, description="a whole number: the inner dimension of an adapter")
    alpha: float = Field(
        default=16.0, gt=0, allow_inf_nan=False, description="a number above 0: adapters count alpha / rank"
    )
    rslora: bool = Field(default=False, description="true or false: adapters count alpha / sqrt(rank)")
    dora: bool = Field(
        default=False, description="true or false: the lengths of the adapted matrices' rows train too (DoRA)"
    )
    base: Annotated[Literal["fp32", "bf16", "int8", "nf4"], choice("fp32", "bf16", "int8", "nf4")] = Field(
        default="fp32",
        description='fp32, bf16 (with train.precision = "bf16"), int8, nf4: what the frozen matrices are kept in',
    )
    dropout: float = Field(
        default=0.0, ge=0, lt=1, description="a number from 0 to less than 1: the part of an adapter's inputs left out"
    )
    targets: Annotated[list[str], BeforeValidator(listed), Field(min_length=1)] | None = Field(
        default=None, description='names of a block\'s matrices, ["q_proj", "v_proj"] (default: what peft takes)'
    )


class Model(Table):
    """``[model]``: exactly one of ``family`` (with its shape), ``pretrained`` (a folder), ``build`` (a function) and
    ``parameters`` (the members' own model)."""

    family: Annotated[str | None, choice(*FAMILIES)] = Field(default=None, description=", ".join(FAMILIES))
    layers: Count | None = Field(default=None, description="a whole number of transformer blocks")
    width: Count | None = Field(default=None, description="the hidden size, a multiple of heads")
    heads: Count | None = Field(default=None, description="a whole number of attention heads")
    context: Annotated[int, Field(ge=2)] | None = Field(
        default=None, description="tokens a training sample is predicted on, 2 or more"
    )
    vocabulary: Count | None = Field(
        default=None, description="a whole number, at least the tokenizer's (default: the tokenizer's)"
    )
    kv_heads: Count | None = Field(default=None, description="a divisor of heads (families with grouped queries)")
    pretrained: str | None = Field(
        default=None,
        description='a folder with config.json and *.safetensors, or a name on the hub: "org/name@revision"',
    )
    build: Code | None = Field(default=None, description='"package.module:function"')
    parameters: Count | None = Field(
        default=None, description="how many the model has that members bring with farflung.group"
    )
    tie: bool | None = Field(default=None, description="true or false (default: the family's own)")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="a number from 0 to less than 1")
    subspace: Count | None = Field(
        default=None,
        description="with family: how many of the width coordinates blocks write, and stages hand on (default: all)",
    )
    router_loss: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="a number, 0 or more: the weight of the balance loss of a mixture's routers (default: what "
        "config.json says where it has output_router_logits)",
    )
    lora: Lora | None = Field(default=None, description="a table of its own, with pretrained: train adapters only")
