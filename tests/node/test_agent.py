import pytest

from farflung.node.entering import one_of_a_name
from farflung.proto.errors import FarflungError


def test_a_second_process_of_one_name_does_not_throw_out_the_first(tmp_path):
    first = one_of_a_name(tmp_path, "run", "lab-3")
    with pytest.raises(FarflungError, match="called lab-3 of this run is running on this machine already"):
        one_of_a_name(tmp_path, "run", "lab-3")
    with one_of_a_name(tmp_path, "run", "lab-4"), one_of_a_name(tmp_path, "other", "lab-3"):
        first.close()
    one_of_a_name(tmp_path, "run", "lab-3").close()
