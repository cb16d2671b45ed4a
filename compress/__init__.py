"""Tensors to few bytes and back: every codec behind one protocol, usable without the rest of farflung.

``make(spec)`` gives a codec, ``codec.encode(x, seed, step)`` gives self-describing bytes, ``decode(blob)`` the tensor.
``simulate(spec, tensors)`` runs a whole exchange between workers in this process. Importing this package, and
``check``, do not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import CodecError
from .specs.declarations import Declaration
from .specs.registry import allow, declare, register, unregister
from .specs.spec import Spec, check, names, parse, traits_of
from .specs.traits import Parameter, Traits

if TYPE_CHECKING:
    from .codec import Codec, add, decode, decode_into, make, norm
    from .exchange.measurement import measure, nmse
    from .exchange.simulation import simulate

_LAZY = {
    "Codec": "codec",
    "add": "codec",
    "decode": "codec",
    "decode_into": "codec",
    "home": "codec",
    "make": "codec",
    "norm": "codec",
    "simulate": "exchange.simulation",
    "measure": "exchange.measurement",
    "nmse": "exchange.measurement",
}
_MODULES = {
    "aqsgd": "stateful.aqsgd",
    "ddp": "ddp",
    "feedback": "stateful.feedback",
    "optimizers": "optimizers",
    "phases": "exchange.phases",
    "secure": "summable.secure",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    if name in _MODULES:
        return importlib.import_module(f".{_MODULES[name]}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Codec",
    "CodecError",
    "Declaration",
    "Parameter",
    "Spec",
    "Traits",
    "add",
    "allow",
    "check",
    "declare",
    "decode",
    "decode_into",
    "home",
    "make",
    "measure",
    "names",
    "nmse",
    "norm",
    "parse",
    "register",
    "simulate",
    "traits_of",
    "unregister",
]
