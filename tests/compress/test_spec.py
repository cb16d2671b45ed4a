import subprocess
import sys

import pytest

from farflung import compress
from farflung.compress import CodecError, check, parse


def test_a_spec_is_read_and_written_back() -> None:
    spec = parse("cocktail:random=0.1,top=0.1,bits=8")
    assert spec["top"] == 0.1 and spec["bits"] == 8 and spec["random"] == 0.1
    assert str(spec) == "cocktail:top=0.1,bits=8"
    assert parse(str(spec)) == spec and str(parse("none")) == "none"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("coctail", "did you mean 'cocktail'"),
        ("", "there is no codec"),
        ("cocktail:tpo=0.1", "did you mean 'top'"),
        ("cocktail:bits=9", "a whole number from 1 to 8"),
        ("cocktail:bits=four", "a whole number"),
        ("cocktail:bits", "not key=value"),
        ("cocktail:bits=4,bits=5", "given twice"),
        ("int8:rounding=nearst", "did you mean 'nearest'"),
        ("none:bits=3", "none has no keys"),
        ("cocktail:random=nan", "a number from"),
    ],
)
def test_a_mistake_is_named_with_what_is_right(text: str, words: str) -> None:
    with pytest.raises(CodecError, match=words):
        parse(text)


def test_roles() -> None:
    assert str(check("int8", "gradient")) == "int8"
    assert str(check("bf16", "gradient")) == "bf16"
    assert check("cocktail:random=0.1,top=0.2,bits=4", "update")
    assert check("aqsgd:bits=4", "activation") and check("int8", "activation_gradient")
    with pytest.raises(CodecError, match="error feedback: write rounding=stochastic"):
        check("int8:rounding=nearest", "gradient")
    with pytest.raises(CodecError, match="add feedback=true"):
        check("cocktail", "gradient")
    assert check("cocktail:feedback=true", "gradient")
    assert check("int4", "difference")
    with pytest.raises(CodecError, match="encodes for a sum of all members"):
        check("powersgd:rank=2", "difference")
    with pytest.raises(CodecError, match="can't be used for activation gradients"):
        check("aqsgd", "activation_gradient")
    with pytest.raises(CodecError, match="grow without bound"):
        check("int2", "update")
    with pytest.raises(CodecError, match="there is no exchange pattern 'ring'"):
        check("cocktail", "update", "ring")
    with pytest.raises(CodecError, match="does not survive the pattern 'two_level'"):
        check("global_exp", "gradient", "two_level")
    with pytest.raises(CodecError, match="there is no role"):
        check("none", "weights")


def test_wire_numbers_are_unique() -> None:
    from farflung.compress.specs.declarations import CODECS

    ids = [declaration.wire_id for declaration in CODECS.values()]
    assert len(set(ids)) == len(ids) and max(ids) < 256


def test_checking_a_spec_does_not_import_torch() -> None:
    program = (
        "import sys; from farflung import compress; compress.check('cocktail:top=0.1', 'update'); "
        "from farflung.cli import codecs; codecs.table(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    assert compress.names()[0] == "none"
