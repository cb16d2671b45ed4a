"""User-defined codecs: registered in a process, and used there like built-in ones. No torch here.

    @compress.register
    class Halves(compress.Codec):
        declaration = compress.declare("halves", 200, "the upper 16 bits", bits=lambda values, count: 16 * count)

A job names such a codec with its module, ``mycodecs.halves``. A process imports that module only after a call of
``allow``, which ``farflung join --allow-code mycodecs`` makes.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from ..errors import CodecError
from .declarations import CODECS, Declaration
from .sizes import Bits
from .traits import Parameter, Traits

FIRST, LAST = 128, 255
"""The range of wire numbers of registered codecs; lower numbers are for built-in ones."""
KINDS: dict[str, Any] = {}
"""Name -> class of each registered codec."""
_allowed: set[str] = set()
_forgetful: list[Callable[[], None]] = []
Kind = TypeVar("Kind", bound=type)


def declare(
    name: str,
    number: int,
    about: str,
    *,
    bits: Bits,
    traits: Traits | None = None,
    parameters: tuple[Parameter, ...] = (),
    paper: str = "",
) -> Declaration:
    """The declaration of a codec to register.

    number: 128 to 255, the same in every process of a run, because blobs' headers have it. bits: (parameters by name,
    elements) -> bits of a body. traits: the codec's promises; default: biased, and each worker decodes all blobs.
    parameters: their order must never change, because it is part of the wire format.
    """
    if not name.replace("_", "").isalnum() or not name[:1].isalpha() or not name.isascii():
        raise CodecError(f"a codec's name is letters, digits and _, not {name!r}")
    if not FIRST <= number <= LAST:
        raise CodecError(f"codec {name!r} needs a number from {FIRST} to {LAST} on the wire, not {number}")
    return Declaration(name, number, "", about, paper, traits or Traits(feedback=True), bits, parameters)


def register(kind: Kind) -> Kind:
    """Make a codec known in this process: a class of ``Codec`` with a ``declaration`` (see ``declare``). Returns the
    class, so that it can be a decorator. A class of the same module and name (after a reload) replaces the first.

    CodecError if it is no such class, or if another codec has its name or number.
    """
    declaration = getattr(kind, "declaration", None)
    if not isinstance(declaration, Declaration) or not all(hasattr(kind, one) for one in ("encode", "write", "read")):
        raise CodecError(f"{kind!r} is no codec to register: a class of compress.Codec with a declaration is")
    target = f"{kind.__module__}:{kind.__qualname__}"
    for name, other in CODECS.items():
        if name in KINDS and other.target == target:
            continue
        if name == declaration.name or other.wire_id == declaration.wire_id:
            raise CodecError(f"codec {declaration.name!r}, number {declaration.wire_id}: {name!r} has that already")
    for name in [name for name in KINDS if CODECS[name].target == target]:
        del CODECS[name], KINDS[name]
    CODECS[declaration.name], KINDS[declaration.name] = replace(declaration, target=target), kind
    _forget()
    return kind


def unregister(name: str) -> None:
    """Forget a registered codec. CodecError if none has that name."""
    if name not in KINDS:
        raise CodecError(f"no codec {name!r} was registered")
    del CODECS[name], KINDS[name]
    _forget()


def allow(modules: Iterable[str]) -> None:
    """Let specs of the form MODULE.NAME import these modules, and no others."""
    _allowed.update(modules)


def module_of(name: str) -> str:
    """The module that a codec's name in a spec (``mycodecs.halves:bits=2``) names; empty for one that is known by name
    alone."""
    return name.partition(":")[0].strip().rpartition(".")[0]


def resolve(name: str) -> str:
    """The registered name of the codec ``MODULE.NAME``, after importing its module; a plain name is returned
    unchanged."""
    module = module_of(name)
    if not module:
        return name
    short = name.rpartition(".")[2]
    if short not in KINDS or KINDS[short].__module__ != module:
        _load(name, module)
    if short not in KINDS or KINDS[short].__module__ != module:
        raise CodecError(f"the module {module!r} registers no codec {short!r} (@compress.register does)")
    return short


def _load(name: str, module: str) -> None:
    if module not in _allowed:
        raise CodecError(
            f"codec {name!r} is code of the module {module!r}, which was not allowed here: if you trust it, join with "
            f"--allow-code {module} (in Python: compress.allow([{module!r}]))"
        )
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a module may fail in any way while it is imported
        raise CodecError(
            f"the module {module!r} of codec {name!r} can't be imported: {type(error).__name__}: {error}"
        ) from error


def on_change(forget: Callable[[], None]) -> None:
    """Have ``forget`` called whenever the set of codecs changes, to clear caches."""
    _forgetful.append(forget)


def _forget() -> None:
    for forget in _forgetful:
        forget()
