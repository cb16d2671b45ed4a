"""A failure to show an event must never end the run: a full disk behind stdout, a `| tee` that has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from ..errors import FarflungError

_Event = TypeVar("_Event")
log = logging.getLogger(__name__)


def undisturbed(tell: Callable[[_Event], None]) -> Callable[[_Event], None]:
    """``tell`` with its errors caught: events that cannot be shown are counted; the log says so once, and again when it
    works.

    FarflungErrors pass: they are for the person who started this (a --link-file that cannot be written).
    """
    lost = 0

    def told(event: _Event) -> None:
        nonlocal lost
        try:
            tell(event)
        except FarflungError:
            raise
        except BrokenPipeError:  # the reader has closed the pipe: stop showing events
            lost += 1
        except Exception as error:
            lost += 1
            if lost == 1:
                log.warning("cannot show what happens: %s; the run goes on", error)
        else:
            if lost:
                log.warning("what happens is shown again; %d events were not", lost)
                lost = 0

    return told
