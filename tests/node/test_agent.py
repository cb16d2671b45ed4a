import pytest

from farflung.node.agent import _one_of_a_name
from farflung.proto.errors import FarflungError


def test_a_second_process_of_one_name_does_not_throw_out_the_first(tmp_path):
    first = _one_of_a_name(tmp_path, "run", "lab-3")
    with pytest.raises(FarflungError, match="called lab-3 of this run is running on this machine already"):
        _one_of_a_name(tmp_path, "run", "lab-3")
    with _one_of_a_name(tmp_path, "run", "lab-4"), _one_of_a_name(tmp_path, "other", "lab-3"):
        first.close()
    _one_of_a_name(tmp_path, "run", "lab-3").close()
