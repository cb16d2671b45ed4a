"""A WAN in a box: hosts as network namespaces, links with delay, jitter, loss, rate and queue.

    up      topology.py (what is asked) -> build.py -> backend: netem.py (tc) or relay.py (TUN + link model)
    use     enter.py (a command inside a host), run.py (a whole training run), script.py (timed changes)
    trust   check.py (compares measured with set values), lateness.py (was the emulator fast enough?), picture.py

Nothing here imports torch; run.py starts processes as cli/local/run.py does. Needs Linux, root and iproute2.
"""

from __future__ import annotations
