"""The border: whatever another machine says, no path leads out of its folder and no control character gets through."""

import logging
import math
import os
import string
from io import StringIO
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import example, given
from hypothesis import strategies as st

from farflung.proto import control_pb2, data_pb2
from farflung.proto.process import logs
from farflung.proto.words import border, fields
from farflung.proto.words.border import Hostile

NASTY = [
    "x/../../../.bashrc.d",
    "..",
    ".",
    "/etc/passwd",
    "a\0b",
    "a\nb",
    "a\\..\\b",
    "C:evil",
    "a:stream",
    "\x1b]0;owned\x07\x1b[2J",
    "\ud800",
    "\u202egnp.exe",
    "a" * (1 << 20),
    "é" * 200,
    "name\n",
    "",
]
hostile = st.one_of(
    st.sampled_from(NASTY),
    st.text(st.characters(exclude_categories=()), max_size=300),
    st.text("./\\\0\n\x1b:~a", max_size=20),
)


def everything_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@given(st.lists(hostile, min_size=1, max_size=3))
def test_no_name_leads_out_of_its_folder(names):
    folder = Path("/nowhere/runs/../cache")
    try:
        path = border.below(folder, *names)
    except Hostile as problem:
        assert str(problem).isprintable()
        return
    inside = os.path.normpath(os.fsdecode(os.path.join("/nowhere/cache", *names)))
    assert os.path.realpath(path) == inside and inside.startswith("/nowhere/cache/")
    assert len(path.parts) == len(folder.parts) + len(names)


def test_links_that_lead_out_of_a_folder(tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "cache" / "pieces-1-a").symlink_to(tmp_path / "home")
    (tmp_path / "cache" / "round").symlink_to("round")
    (tmp_path / "cache" / "within").symlink_to("real")
    for name in ("pieces-1-a", "round"):
        with pytest.raises(Hostile, match="leads out of"):
            border.below(tmp_path / "cache", name)
    assert border.below(tmp_path / "cache", "within", "a").name == "a"
    with pytest.raises(Hostile):
        border.below(tmp_path / "cache")


@given(hostile)
def test_what_is_shown_commands_no_terminal(text):
    assert border.printable(text).isprintable() and len(border.printable(text)) <= 200
    lines = border.harmless(text)
    assert not set(lines) & set(map(chr, [*range(9), *range(11, 32), *range(127, 160), 0x202E]))
    lines.encode()
    assert border.told(text).count("\n") <= 1
    assert border.quoted(text).isprintable()


def test_text_of_people_stays_as_it_is():
    for text in ("Zeile\n\tzwei\n", "فارسی\u200cها", "👩\u200d🔬 naïve\u00a0…", "日本語"):
        assert border.harmless(text) == text
    assert border.harmless_values({"a\x1b": ["\x07", 1, None]}) == {"a ": [" ", 1, None]}


@pytest.mark.parametrize("good", ["10.0.0.1:70", "[::1]:7070", "[fe80::1%eth0]:1", "host_1.lan:0", "localhost:1"])
def test_addresses(good):
    assert border.address(good) == good


@given(hostile)
@example("unix:123")
@example("unix:/var/run/docker.sock")
@example("dns:53")
@example("host:70\n")
def test_what_grpc_would_take_for_a_socket_of_this_machine_is_no_address(text):
    try:
        host = border.address(text).rpartition(":")[0]
    except Hostile:
        return
    assert set(host) <= set(string.ascii_letters + string.digits + "-_.:[]%") and "unix" not in host


@pytest.mark.parametrize("number", [1.5, math.nan, math.inf, -1, 11, True])
def test_numbers_out_of_range(number):
    with pytest.raises(Hostile):
        border.whole(number, 0, 10, "number of things")


# ---- every word of every message ------------------------------------------------------------

MESSAGES = {
    name: message
    for module in (control_pb2, data_pb2)
    for name, message in module.DESCRIPTOR.message_types_by_name.items()
}
STRINGS = sorted(
    f"{name}.{field.name}"
    for name, message in MESSAGES.items()
    for field in message.fields
    if field.type == FieldDescriptor.TYPE_STRING
)


def test_every_word_of_the_wire_has_a_kind():
    assert sorted(fields.KINDS) == STRINGS


@given(st.sampled_from(STRINGS), hostile)
def test_hostile_words_in_every_field(where, text):
    name, _, key = where.partition(".")
    message = getattr(control_pb2, name, None) or getattr(data_pb2, name)
    try:
        text.encode()
    except UnicodeEncodeError:
        return  # no message carries it
    made = message()
    one = getattr(made, key)
    one.append(text) if not isinstance(one, str) else setattr(made, key, text)
    try:
        fields.checked(made)
    except Hostile as problem:
        assert str(problem).isprintable() and where in problem.message
        return
    said = getattr(made, key)
    if where not in fields.READ_ELSEWHERE:
        for word in [said] if isinstance(said, str) else said:
            assert "\x1b" not in word and "\0" not in word
            assert word.isprintable() or where in fields.LINES


def test_what_is_inside_a_message_is_checked_too():
    view = control_pb2.View(members=[control_pb2.Member(name="a", session="1", address="unix:5")])
    with pytest.raises(Hostile, match=r"Member\.address: 'unix:5' is no HOST:PORT"):
        fields.checked(control_pb2.Order(view=view))
    order = control_pb2.Order(stop=control_pb2.Stop(why="\x1b[2Jall is well\nerror: type your password"))
    assert fields.checked(order).stop.why == " [2Jall is well error: type your password"


def test_a_log_line_commands_no_terminal():
    stream, before = StringIO(), logging.getLogger().handlers[:]
    try:
        logs.set_up("text", stream)
        logging.getLogger("x").warning("%s", "\x1b[2Jboo\x07\nERROR forged")
        try:
            raise ValueError("\x1b]0;owned\x07")
        except ValueError:
            logging.getLogger("x").exception("bad")
    finally:
        logging.getLogger().handlers[:] = before
    assert "WARNING  [2Jboo  ERROR forged\n" in stream.getvalue() and "owned" in stream.getvalue()
    assert not set(stream.getvalue()) & set("\x1b\x07\0")
