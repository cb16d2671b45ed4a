"""Numbers on the command line that are no numbers: every command refuses them in one sentence."""

import pytest

from farflung.__main__ import app
from farflung.cli.common import execute
from farflung.cli.quantities import rate
from farflung.proto.errors import FarflungError
from farflung.scheduler.errors import PlanError
from farflung.scheduler.networks.wishes import seconds_of


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("codecs", "advise", "g.safetensors", "--link", "1mbit", "--step", "inf"), "--step"),
        (("codecs", "advise", "g.safetensors", "--link", "1mbit", "--step", "nan"), "--step"),
        (("codecs", "advise", "g.safetensors", "--link", "1mbit", "--step", "-1"), "--step"),
        (("plan", "--cluster", "2x4090@home", "--time-limit", "nan"), "--time-limit"),
        (("plan", "--cluster", "2x4090@home", "--time-limit", "-1"), "--time-limit"),
        (("plan", "--cluster", "2x4090@home", "--speed", "inf"), "--speed"),
        (("join", "farflung://127.0.0.1:1/#x", "--hours", "nan"), "--hours"),
        (("status", "runs/none", "--every", "inf"), "--every"),
        (("generate", "runs/none", "a", "--temperature", "nan"), "--temperature"),
    ],
)
def test_an_option_that_is_no_finite_number(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(app, [*words]) == 2
    shown = capsys.readouterr().err
    assert said in shown and "hint:" in shown and "please report" not in shown


def test_quantities_too_large_for_a_machine() -> None:
    with pytest.raises(FarflungError, match="no number that a machine can hold"):
        rate("9" * 400 + "mbit")
    with pytest.raises(PlanError, match="is not a time"):
        seconds_of("9" * 400 + "h")
