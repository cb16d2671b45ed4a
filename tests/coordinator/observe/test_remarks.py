"""What a start says of the data is there for those who look later."""

import contextlib

from farflung.cli.one_run.status import show
from farflung.cli.screen.output import Output
from farflung.coordinator.observe.status import read_status
from farflung.coordinator.observe.takers.remarks import Remarks, remarks
from farflung.coordinator.store.store import Store


def test_notices_are_those_of_the_last_start_that_read_the_data_and_warnings_stay(tmp_path):
    passed = []
    with contextlib.closing(Store(tmp_path, create=True)) as store:
        for text in ("1,000 bytes are 300 tokens", "2,000 bytes are 600 tokens"):
            heard = Remarks(store, passed.append)
            heard.hear({"event": "notice", "message": text})
            heard.hear({"event": "warning", "message": f"look at it: {text}"})
            heard.hear({"event": "progress", "what": "tokenising"})
            heard.keep()
        Remarks(store, passed.append).keep()  # a start that found everything as it was
        assert remarks(store) == ["2,000 bytes are 600 tokens"]
        assert [text for _, _, text in store.warnings.newest()] == [
            "look at it: 1,000 bytes are 300 tokens",
            "look at it: 2,000 bytes are 600 tokens",
        ]
    assert len(passed) == 6


async def test_status_says_what_the_text_became(cluster, capsys):
    coordinator = cluster.coordinator()
    await coordinator.event("listening")
    record = read_status(coordinator.state)
    assert "per byte" in record["data"][0] and not record["warnings"]
    show(Output(), record)
    assert "per byte" in capsys.readouterr().out
