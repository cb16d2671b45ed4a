"""The name of the person who gives a command, as others see it."""

import getpass
import os
import socket


def who() -> str:
    """USER@MACHINE. In containers the user may have no name; then its number."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = f"user-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"
