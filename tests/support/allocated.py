"""Memory as torch counts it."""

import torch


def peak_of(run) -> int:
    """The most bytes that torch has allocated at a time while ``run`` runs, beyond those from before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as found:
        run()
    events = [one for one in found.profiler.kineto_results.events() if one.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda one: one.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most
