"""Commands by which farflung starts Python processes without the current folder on ``sys.path``.

``python -m`` puts that folder first, so a file ``torch.py`` there would run. ``-P`` (Python 3.11 and later) prevents
this; with 3.10 a line of Python removes the folder before anything is imported.
"""

from __future__ import annotations

import sys

_RUN = """import sys; sys.path.pop(0); sys.argv.pop(0)
import runpy; runpy.run_module(sys.argv[0], None, "__main__", True)"""


def module(name: str, *words: str, safe_path: bool = sys.version_info >= (3, 11)) -> list[str]:
    """The command that runs a module as ``python -m NAME WORDS`` does. ``safe_path``: whether Python has ``-P``."""
    return [sys.executable, "-P", "-m", name, *words] if safe_path else [sys.executable, "-c", _RUN, name, *words]


def code(text: str, *words: str, safe_path: bool = sys.version_info >= (3, 11)) -> list[str]:
    """The command that runs ``text`` as ``python -c TEXT WORDS`` does."""
    if safe_path:
        return [sys.executable, "-P", "-c", text, *words]
    return [sys.executable, "-c", f"import sys; sys.path.pop(0)\n{text}", *words]
