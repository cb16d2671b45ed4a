"""Events as people and scripts see them; no process is started here."""

import io
import json
import re
import sys

import pytest

from farflung.cli.screen.events.run_summary import RunSummary
from farflung.cli.screen.events.sentences import sentence
from farflung.cli.screen.events.view_lines import plan_notes, view_text
from farflung.cli.screen.output import Output, explain
from farflung.cli.screen.tables import show_plan
from farflung.cli.screen.terminal import PlainScreen, RichScreen, bytes_line, plan_table, screen
from farflung.cli.screen.units import bytes_text, count_text, seconds_text
from farflung.coordinator.observe.savings import compared, savings_text, schedule_of
from farflung.proto.errors import FarflungError, JobError, Refused, RunFailed
from farflung.proto.process.rates import rate_text

VIEW = {
    "event": "view",
    "view": 2,
    "pipelines": [["a", "b"], ["c", "d"]],
    "stages": [[0, 2], [3, 5]],
    "spares": ["e"],
    "codecs": {"updates": "cocktail:random=0.1,top=0.2,bits=4"},
    "why": "d joined",
}
STEP = {
    "event": "step",
    "step": 7,
    "loss": 2.5,
    "samples": 32,
    "seconds": 0.5,
    "tokens_per_second": 8192.0,
    "bytes_updates": 1000,
    "bytes_activations": 1000,
    "bytes_dense": 100_000,
}
DONE = {
    "event": "done",
    "steps": 7,
    "eval_loss": 2.25,
    "seconds": 90.0,
    "samples": 224,
    "checkpoint": "runs/x/checkpoints/7",
    "views": 2,
    "bytes_total": 123_456,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (FarflungError("m", "h"), 2),
        (JobError("m", "h"), 2),
        (Refused("m", "h"), 3),
        (RunFailed("m", "h"), 4),
    ],
)
def test_an_error_keeps_its_words_and_status(error: FarflungError, status: int) -> None:
    assert explain(error) == ("m", "h", status)


def test_other_errors() -> None:
    assert explain(KeyboardInterrupt())[2] == 130
    message, hint, status = explain(PermissionError(13, "Permission denied", "/x"))
    assert (message, status) == ("Permission denied: /x", 2) and "--state" in hint
    try:
        {}["nowhere"]
    except KeyError as error:
        message, hint, status = explain(error)
    assert status == 4 and "nowhere" in message and "test_output.py" in message and "--debug" in hint


def test_library_errors_are_the_persons_to_mend() -> None:
    from farflung.scheduler import PlanError

    message, hint, status = explain(PlanError("no devices"))
    assert (message, status) == ("no devices", 2) and "farflung plan --help" in hint


def test_json_is_one_valid_object_a_line() -> None:
    out = Output(as_json=True, stdout=io.StringIO(), stderr=io.StringIO())
    out.event({"event": "step", "loss": float("nan"), "nodes": {"a"}, "at": (1, 2)})
    [line] = out.stdout.getvalue().splitlines()
    record = json.loads(line)
    assert record["loss"] is None and record["nodes"] == ["a"] and record["at"] == [1, 2] and record["time"] > 0


def test_a_plan_of_one_stage_names_no_codec_of_activations() -> None:
    codecs = {"updates": "int8", "activations": "aqsgd:bits=4", "gradients": "int8"}
    assert plan_notes({"stages": [[0, 5]], "codecs": codecs}) == ["codecs: updates int8"]
    assert "activations aqsgd:bits=4" in plan_notes({"stages": [[0, 2], [3, 5]], "codecs": codecs})[0]


def test_story_adds_up() -> None:
    summary = RunSummary()
    for event in ({"event": "joined", "node": "a"}, VIEW, STEP, {**STEP, "step": 8}):
        summary.add(event)
    assert summary.savings.ratio is None
    summary.add({**STEP, "step": 9})
    assert summary.step == 9 and summary.view == 2
    assert summary.savings.ratio == 50 and summary.savings.text() == "50x fewer bytes than fp16"
    assert summary.loss_text() == "loss 2.500" and summary.speed_text() == "8.19 k tokens/s"


def test_every_event_has_a_sentence() -> None:
    assert "a (layers 0-2) -> b (layers 3-5)" in sentence(VIEW)
    assert "spares: e" in sentence(VIEW) and "d joined" in sentence(VIEW)
    assert sentence({"event": "listening", "link": "farflung://h:1/#T"}).count("farflung join farflung://h:1/#T") == 1
    listening = sentence({"event": "listening", "link": "farflung://h:1/#T", "uses": 100, "expires": 0.0})
    hidden = listening.index("FARFLUNG_LINK=farflung://h:1/#T farflung join"), listening.index("join @FILE")
    assert max(hidden) < listening.index("  farflung join farflung://h:1/#T") and "admits 100 nodes" in listening
    assert sentence({"event": "left", "node": "a", "why": "silent for 5 s"}) == "a left: silent for 5 s"
    assert sentence({"event": "joined", "node": "a", "why": "a joined from x:1"}) == "a joined from x:1"
    assert sentence({"event": "eval", "step": 3, "loss": 2.0}) == "step 3: validation loss 2.0000"
    assert sentence(DONE).startswith("done: 7 steps in 1 min 30 s, validation loss 2.2500")
    assert sentence({"event": "from the future"}) == ""


def test_a_pipe_gets_plain_lines_and_few_steps() -> None:
    out = Output(stdout=io.StringIO(), stderr=io.StringIO())
    times = iter(range(1000))
    with screen(out) as shown:
        assert isinstance(shown, PlainScreen)
        shown._clock = lambda: float(next(times))
        for number in range(10):
            shown.show({**STEP, "step": number})
        shown.show({"event": "warning", "message": "careful", "node": "a"})
        shown.show(DONE)
    lines = out.stdout.getvalue().splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith("step")] == ["step 0", "step 5"]
    assert "\x1b" not in out.stdout.getvalue()
    assert "50x fewer bytes than fp16" in out.stdout.getvalue()
    assert out.stderr.getvalue() == "warning (a): careful\n"


def test_a_terminal_gets_a_table_and_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    out = Output(stdout=Terminal(), stderr=sys.stderr)
    with screen(out) as shown:
        assert isinstance(shown, RichScreen)
        for event in ({"event": "joined", "node": "[a]"}, {**VIEW, "steps": 7}, STEP, DONE):
            shown.show(event)
    text = out.stdout.getvalue()
    assert "spares: e" in text
    assert "[a] joined" in text and "stage 1: layers 3-5" in text and "done: 7 steps" in text


def test_plan_table_has_a_row_for_each_pipeline() -> None:
    table = plan_table(VIEW)
    assert table.row_count == 2 and len(table.columns) == 3


def test_units() -> None:
    assert [bytes_text(n) for n in (0, 999, 1500, 12_300_000, 123_000_000)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "12.3 MB",
        "123 MB",
    ]
    assert [rate_text(n) for n in (500, 20e6, 1.5e9)] == ["500 bit/s", "20 Mbit/s", "1.5 Gbit/s"]
    assert [seconds_text(n) for n in (0.123, 48, 200, 7500)] == ["0.12 s", "48 s", "3 min 20 s", "2 h 05 min"]
    assert [seconds_text(n) for n in (0, 0.00016)] == ["0 s", "0.16 ms"]
    assert [count_text(n) for n in (950, 12_300, 4.5e6)] == ["950", "12.3 k", "4.5 M"]


def test_savings_tell_updates_from_activations() -> None:
    summary = RunSummary()
    for number in range(40):
        dense = number < 20
        summary.add(
            {
                "event": "step",
                "step": number + 1,
                "bytes_updates": 1200 if dense else 10,
                "bytes_activations": 400,
                "bytes_dense": 600 + 1000,
                "bytes_dense_updates": 600,
            }
        )
    assert summary.savings.text() == "1.6x fewer bytes than fp16"
    assert summary.savings.detail() == "updates as many (60x in the last rounds), activations 2.5x fewer"


HOSTILE = "\x1b[2J\x1b]0;owned\x07all is well\x9b31m\ud800"


KINDS = ["notice", "warning", "advice", "view", "joined", "left", "error", "progress", "checkpoint"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stdout", [Terminal, io.StringIO])
def test_what_a_coordinator_says_commands_no_terminal(kind, stdout):
    words = ("message", "why", "doing", "use", "better", "node", "hint", "what", "path")
    event = {"event": kind, **dict.fromkeys(words, HOSTILE), "view": 1, "done": 1, "unit": "bytes"}
    event |= {"pipelines": [[HOSTILE, "[red]b[/]"]], "stages": [[0, 1], [2, 3]], "spares": [HOSTILE]}
    event["codecs"] = {"activations": HOSTILE}
    out, err = stdout(), io.StringIO()
    output = Output(stdout=out, stderr=err)
    with screen(output) as shown:
        shown.show(event)
    output.say(HOSTILE)
    output.note(HOSTILE)
    output.fail(Refused(HOSTILE, HOSTILE))
    said = out.getvalue() + err.getvalue()
    assert "all is well" in said
    assert not any(one in said for one in ("\x1b[2J", "\x1b]", "\x07", "\x9b", "\ud800"))


def test_what_a_coordinator_says_as_json(capsys):
    Output(as_json=True).event({"event": "notice", "message": HOSTILE})
    said = capsys.readouterr().out
    assert said.isascii() and said.strip().isprintable() and json.loads(said)["message"] == HOSTILE


def test_what_is_saved_is_one_sentence_and_never_a_fraction():
    view = {**VIEW, "dense_rounds": 20, "round_every": 1}
    sizes = {"bytes_updates": 1200, "bytes_activations": 0, "bytes_dense": 600, "bytes_dense_updates": 600}
    summary = RunSummary()
    summary.add(view)
    for number in range(1, 21):
        summary.add({"event": "step", "step": number, **sizes})
        assert summary.savings.text() == "compression starts after round 20"
    assert bytes_line(summary).startswith("no round was compressed: that starts after round 20; 2.0x the bytes of ")
    for number in range(21, 41):
        summary.add({"event": "step", "step": number, **sizes, "bytes_updates": 1200 if number == 21 else 10})
    assert summary.savings.text() == "60x fewer bytes than fp16", "what the first rounds cost is not in it"
    assert bytes_line(summary).startswith("60x fewer bytes than fp16 after round 20; 1.1x as many in the whole run, ")
    uncompressed = RunSummary()
    uncompressed.add({**view, "codecs": {"updates": "none"}})
    for number in range(1, 9):
        uncompressed.add({"event": "step", "step": number, **sizes})
    assert uncompressed.savings.text() == "2.0x the bytes of fp16"


def test_a_factor_is_no_number_below_one_and_not_one():
    said = [compared(ratio, "fewer bytes than fp16", "the bytes of fp16") for ratio in (3.0, 1.01, 0.5, None)]
    assert said == ["3.0x fewer bytes than fp16", "as many bytes as fp16", "2.0x the bytes of fp16", ""]
    assert compared(0.99, "fewer", "as many") == "as many"


def test_rounds_of_many_steps_start_to_compress_after_as_many_steps():
    schedule = schedule_of({"codec": "int8", "dense_rounds": 2, "every": 10, "fragments": 2})
    assert savings_text(schedule, 15, 1, 2) == "compression starts after round 2"
    assert savings_text(schedule, 16, 1, 2) == "2.0x fewer bytes than fp16"
    assert savings_text(schedule_of({}), 1, 0, 0) == "" and savings_text(schedule_of({"codec": "none"}), 9, 2, 1) != ""


def test_a_view_is_one_sentence_of_cause_and_effect():
    why = "node-3 left: its owner wants it back; the others keep what they hold; node-3 left: 1 pipeline of 2 nodes"
    view = {**VIEW, "pipelines": [["a", "b"]], "why": why}
    assert view_text(view) == "node-3 left: its owner wants it back; now 1 pipeline of 2 stages, 1 spare"
    assert sentence(view).splitlines()[0] == f"view 2: {view_text(view)}"
    back = {**view, "why": "b died; from the checkpoint of step 8; and so on"}
    assert view_text(back).startswith("b died; from the checkpoint of step 8; now 1 pipeline")


def test_a_plan_breaks_no_name_at_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    made = {
        "spares": {f"home/{number}-4090": "even in its best place a step would take 3,440 s" for number in range(14)},
        "predicted": {"step_s": 15.0, "tokens_per_second": 1e5, "bubble": 0.006, "bottleneck": "its compute"},
        "why": "1 pipeline of 4 stages",
        "tokens_per_day": 1e10,
        "dollars_per_billion_tokens": 19.9,
        "codecs": {},
        "schedule": "1f1b",
        "search_s": 3.0,
    }
    stages = [f"stage {number}: layers {6 * number}-{6 * number + 5}" for number in range(4)]
    rows = [("pipeline", "share", *stages), ("0", "1,024 microbatches", *(f"oregon/{n}-H100" for n in range(4)))]
    for columns in ("80", "140"):
        monkeypatch.setenv("COLUMNS", columns)
        out = Terminal()
        show_plan(Output(stdout=out, stderr=io.StringIO()), rows, made)
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())
        assert all(f"oregon/{number}-H100" in text for number in range(4)) and "1,024 microbatches" in text
        assert text.count("even in its best place") == 1 and "and 2 more: even" in text
        assert ("pipeline 0, 1,024 microbatches: oregon/0-H100 (layers 0-5) ->" in text) == (columns == "80")
        assert max(map(len, text[: text.index("spares")].splitlines())) <= int(columns)
