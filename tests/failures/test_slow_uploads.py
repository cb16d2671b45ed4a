"""The last checkpoint over a link that is slow and breaks all the time: it arrives, and little of it goes twice."""

import contextlib
import time

from cable import Cable
from ports import free_port

CUT_EVERY = 2.0
RATE = 6_000_000  # bytes a second


def test_the_last_checkpoint_arrives_over_a_link_that_breaks_all_the_time(farm):
    """24 MB at 6 MB/s, cut every two seconds: begun anew each time it would never be whole."""
    it = farm(ballast=2_000_000, run={"steps": 6}, checkpoint={"every": 1000})
    port = free_port()
    with contextlib.closing(Cable(f"127.0.0.1:{port}")) as cable:
        it.coordinator("--listen", f"127.0.0.1:{port}", "--advertise", cable.address)
        it.node("a")
        it.wait(lambda: it.step() == 6, "all steps are trained")
        cable.rate, before, cuts = RATE, cable.forwarded, 0
        next_cut = time.monotonic() + CUT_EVERY

        def done():
            nonlocal next_cut, cuts
            if time.monotonic() > next_cut:
                cable.cut()
                cuts += 1
                next_cut = time.monotonic() + CUT_EVERY
            return it.events("done")

        (end,) = it.wait(done, "the run is done")
        (stored,) = (it.folder / end["checkpoint"]).glob("*.safetensors")
        size = stored.stat().st_size
        assert size > 20_000_000 and cuts >= 2
        assert cable.forwarded - before < 2 * size, "each cut costs what was on its way, no more"
    assert not it.events("warning")
