"""Who gives a command, in words for those who look at the run."""

import getpass
import os
import socket


def who() -> str:
    """USER@MACHINE. Containers run as users that no list knows: those are their number."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = f"user-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"
