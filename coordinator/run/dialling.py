"""Dialling a node back: whether anybody answers at its address."""

from __future__ import annotations

import asyncio
import contextlib
import os

from ...proto.errors import FarflungError
from ...proto.link import split_address


async def dial(address: str, timeout: float) -> str:
    """Connect to HOST:PORT and hang up; empty when that worked, else why not."""
    try:
        host, port = split_address(address)
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), timeout)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    except (TimeoutError, asyncio.TimeoutError):
        return f"no answer within {timeout:g} s"
    except OSError as error:
        return os.strerror(error.errno).lower() if error.errno else str(error)
    except (FarflungError, ValueError) as error:
        return str(error)
    return ""
