"""The last checkpoint over a link that is slow and breaks all the time: it arrives, and little of it goes twice."""

import contextlib

from cable import Cable
from ports import free_port

CUT_EVERY = 6_000_000  # bytes
RATE = 3_000_000  # bytes a second


def test_the_last_checkpoint_arrives_over_a_link_that_breaks_all_the_time(farm):
    """24 MB at 3 MB/s, cut every 6 MB: begun anew each time it would never be whole."""
    it = farm(ballast=2_000_000, run={"steps": 6}, checkpoint={"every": 1000})
    port = free_port()
    with contextlib.closing(Cable(f"127.0.0.1:{port}")) as cable:
        cable.rate = RATE  # from the beginning: how soon the test sees the last step must not matter
        it.coordinator("--listen", f"127.0.0.1:{port}", "--advertise", cable.address)
        it.node("a")
        it.wait(lambda: it.step() == 6, "all steps are trained")
        before = last_cut = cable.forwarded
        cuts = 0

        def done():
            nonlocal last_cut, cuts
            if cable.forwarded - last_cut > CUT_EVERY:
                cable.cut()
                cuts, last_cut = cuts + 1, cable.forwarded
            return it.events("done")

        (end,) = it.wait(done, "the run is done")
        (stored,) = (it.folder / end["checkpoint"]).glob("*.safetensors")
        size = stored.stat().st_size
        assert size > 20_000_000 and cuts >= 2
        assert cable.forwarded - before < 2 * size, "each cut costs what was on its way, no more"
    assert not it.events("warning")
