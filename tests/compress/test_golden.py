"""The bytes of every codec: the wire format can't change by accident."""

import pytest
from golden_blobs import FOLDER, SPECS, check

from farflung import compress


@pytest.mark.parametrize("spec", SPECS)
def test_bytes_are_what_they_were(spec: str) -> None:
    check(spec, FOLDER / f"{spec.partition(':')[0]}.json")


def test_each_golden_file_is_of_a_codec_that_there_is() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == set(compress.names())
