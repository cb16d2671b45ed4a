"""farflung trains and fine-tunes large models on accelerators that are far apart.

The rooms: ``compress`` (codecs), ``scheduler`` (who trains what with whom), ``coordinator`` (membership),
``node`` (the worker), ``proto`` (what goes over the wire), ``deploy`` (places to run it).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api.group import Group, group
    from .api.library import Trained, train
    from .api.trainer import Arguments, Trainer

__version__ = "0.1.0"
__all__ = ["Arguments", "Group", "Trained", "Trainer", "group", "train"]

_HOMES = {
    "group": "api.group",
    "Group": "api.group",
    "train": "api.library",
    "Trained": "api.library",
    "Trainer": "api.trainer",
    "Arguments": "api.trainer",
}


def __getattr__(name: str) -> Any:  # so that `import farflung` stays free of torch, and of everything else
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
