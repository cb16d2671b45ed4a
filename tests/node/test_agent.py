import os
from types import SimpleNamespace

import pytest

from farflung.node import agent
from farflung.node.device.own_folder import COMPILED
from farflung.node.entering import one_of_a_name
from farflung.proto.errors import FarflungError


def test_a_second_process_of_one_name_does_not_throw_out_the_first(tmp_path):
    first = one_of_a_name(tmp_path, "run", "lab-3")
    with pytest.raises(FarflungError, match="called lab-3 of this run is running on this machine already"):
        one_of_a_name(tmp_path, "run", "lab-3")
    with one_of_a_name(tmp_path, "run", "lab-4"), one_of_a_name(tmp_path, "other", "lab-3"):
        first.close()
    one_of_a_name(tmp_path, "run", "lab-3").close()


@pytest.mark.parametrize("named", ["", "of the owner"])
def test_what_is_compiled_stays_in_the_nodes_folder(tmp_path, monkeypatch, named):
    monkeypatch.setenv(COMPILED, named)
    if not named:
        monkeypatch.delenv(COMPILED)
    lives = SimpleNamespace(run=lambda devices: None, left=lambda why: None)
    monkeypatch.setattr(agent, "Lives", lambda *_: lives)
    monkeypatch.setattr(agent, "obey_signals", lambda owner: None)
    monkeypatch.setattr(agent, "check_secure", lambda *_: None)
    assert agent.run(None, cache=tmp_path / "cache", emit=lambda event: None) == 0
    assert os.environ[COMPILED] == (named or str(tmp_path / "cache" / "compiled"))
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    assert cache_dir() == os.environ[COMPILED]
