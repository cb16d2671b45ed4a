"""System calls that Python's library lacks: namespaces, mounts, timer slack, locked memory, TUN devices."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import struct
import threading
from collections.abc import Iterator

NETNS = "/run/netns"
_CLONE_NEWNET, _CLONE_NEWNS = 0x40000000, 0x00020000
_MS_BIND, _MS_REC, _MS_SLAVE = 4096, 16384, 1 << 19
_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x01, 0x02

_libc = ctypes.CDLL(None, use_errno=True)


def _call(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """This thread is in a network namespace while the block runs. Sockets that it opens there stay there."""
    home = os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY)
    try:
        there = os.open(f"{NETNS}/{namespace}", os.O_RDONLY)
        try:
            _call(_libc.setns(there, _CLONE_NEWNET), f"enter {namespace}")
        finally:
            os.close(there)
        try:
            yield
        finally:
            _call(_libc.setns(home, _CLONE_NEWNET), "leave a namespace")
    finally:
        os.close(home)


def enter(namespace: str, hosts_file: str | None = None) -> None:
    """This process is in a network namespace from now on; `hosts_file` is what it sees as /etc/hosts."""
    there = os.open(f"{NETNS}/{namespace}", os.O_RDONLY)
    _call(_libc.setns(there, _CLONE_NEWNET), f"enter {namespace}")
    os.close(there)
    if hosts_file and os.path.exists("/etc/hosts"):
        _call(_libc.unshare(_CLONE_NEWNS), "unshare mounts")
        _call(_libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None), "make mounts private")
        _call(_libc.mount(hosts_file.encode(), b"/etc/hosts", None, _MS_BIND, None), "mount /etc/hosts")


def open_tun(namespace: str, name: str) -> int:
    """A TUN device in a namespace that hands over whole TCP segments (GSO) behind a virtio-net header; its descriptor.

    The device is gone when the descriptor closes, so a dead relay is a dead network and never an unshaped one."""
    with inside(namespace):
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        request = struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR)
        fcntl.ioctl(device, _TUNSETIFF, request)
    fcntl.ioctl(device, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
    return device


def be_punctual() -> list[str]:
    """Real-time scheduling, exact timers, locked memory. Returns the names of those that failed."""
    missing = []
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))
    except OSError as error:
        missing.append(f"SCHED_RR: {error.strerror}")
    if _libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0) < 0:
        missing.append("timer slack")
    if _libc.mlockall(1) < 0:
        missing.append("locked memory")
    return missing


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send this process a signal when the thread that started it ends."""
    _call(_libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl")
