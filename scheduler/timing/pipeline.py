"""One pipeline's step, simulated alone: as in simulate.py, but without recording spans and without coupled transports.

Pipelines that share no line of a site do not influence each other, so each is simulated by itself, and only once. The
loop is compiled where numba is loaded; else the same loop runs in Python.
"""

from __future__ import annotations

import heapq
import math
from typing import Any

COMPUTED, LEFT, ARRIVED = 0, 1, 2


def pipeline_end(
    microbatches: Any,
    gpipe: Any,
    held: Any,
    forward: Any,
    backward: Any,
    bits: Any,
    latency: Any,
    link: Any,
    up: Any,
    down: Any,
) -> Any:
    """Seconds until a pipeline with one stage a node has ended its step, the same number as from ``simulate``; -1 if it
    can't end.

    held: [p] microbatches that each stage may have in flight under 1F1B. forward, backward: [p] seconds of one. bits,
    latency, link: [2 (p - 1)], first the p - 1 links in the activations' direction, then in the gradients': bits of a
    message, seconds, seconds a bit. up, down: [p] seconds a bit of the devices' own lines, 0 where they have none.
    """
    stages = len(held)
    hops = stages - 1
    free, waiting, sent, sending = (
        [0.0] * (2 * hops + 1),
        [0] * (2 * hops + 1),
        [0] * (2 * hops + 1),
        [0] * (2 * hops + 1),
    )
    free_up, free_down = [0.0] * stages, [0.0] * stages
    ahead, astern = [0] * stages, [0] * stages  # microbatches that have arrived
    forwards, backwards, doing = [0] * stages, [0] * stages, [0] * stages
    ahead[0] = microbatches
    astern[stages - 1] = microbatches
    events = [(0.0, 0, 0, 0)]
    events.pop()
    count, now, end = 0, 0.0, 0.0
    stage = 0
    starting = 0  # the stages that have yet to begin
    while True:
        if starting < stages:
            stage = starting
            starting += 1
        elif len(events) == 0:
            break
        else:
            now, _, kind, which = heapq.heappop(events)
            flow = -1
            if kind == COMPUTED:
                stage = which
                end = max(end, now)
                if doing[stage] == 1:
                    flow = stage if stage < hops else -1
                else:
                    flow = hops + stage - 1 if stage > 0 else -1
                doing[stage] = 0
                if flow >= 0:
                    waiting[flow] += 1
            elif kind == LEFT:
                flow = which
                sending[flow] = 0
            elif which < hops:
                stage = which + 1
                ahead[stage] += 1
            else:
                stage = which - hops
                astern[stage] += 1
            if flow >= 0 and sending[flow] == 0 and sent[flow] < waiting[flow]:
                source = flow if flow < hops else flow - hops + 1
                target = flow + 1 if flow < hops else flow - hops
                size = bits[flow]
                free[flow] = max(now, free[flow]) + size * link[flow]
                done = free[flow]
                if up[source] > 0:
                    free_up[source] = max(now, free_up[source]) + size * up[source]
                    done = max(done, free_up[source])
                if down[target] > 0:
                    free_down[target] = max(now, free_down[target]) + size * down[target]
                    done = max(done, free_down[target])
                if done < math.inf:
                    sending[flow] = 1
                    sent[flow] += 1
                    heapq.heappush(events, (done, count + 1, LEFT, flow))
                    heapq.heappush(events, (done + latency[flow], count + 2, ARRIVED, flow))
                    count += 2
            if kind == LEFT:
                continue
        if doing[stage] != 0:
            continue
        begun, back = forwards[stage], backwards[stage]
        if gpipe:
            returns = begun == microbatches and back < begun and back < astern[stage]
            goes = begun < ahead[stage]
        else:
            returns = back < begun and back < astern[stage]
            goes = begun < ahead[stage] and begun - back < held[stage]
        if returns:
            backwards[stage] += 1
            doing[stage] = 2
            took = backward[stage]
        elif goes:
            forwards[stage] += 1
            doing[stage] = 1
            took = forward[stage]
        else:
            continue
        count += 1
        heapq.heappush(events, (now + took, count, COMPUTED, stage))
    for place in range(stages):
        if backwards[place] < microbatches:
            return -1.0
    return end
