"""The address in the link: what it says where nothing was said, and a word when it leads others nowhere."""

from pathlib import Path

import pytest

from farflung.coordinator.serve.starting.addresses import only_here
from farflung.coordinator.serve.starting.options import Options


@pytest.mark.parametrize(
    ("listen", "advertise", "address", "warned"),
    [
        ("0.0.0.0:7070", None, "127.0.0.1:7070", True),
        ("0.0.0.0:7070", None, "10.0.0.7:7070", False),
        ("0.0.0.0:7070", "127.0.0.1:7070", "127.0.0.1:7070", False),
        ("127.0.0.1:0", None, "127.0.0.1:40123", False),
    ],
)
def test_a_link_to_this_machine_alone_is_warned_of(
    listen: str, advertise: str | None, address: str, warned: bool
) -> None:
    said = only_here(Options(job=Path("job.toml"), listen=listen, advertise=advertise), address)
    assert ("--advertise" in said) is warned
