"""Names, units and values of the metrics; the documents and the dashboard name no others."""

import re
from pathlib import Path
from typing import Any

import pytest
from made_up_run import MadeUpRun
from prometheus_client.parser import text_string_to_metric_families

from farflung import __version__
from farflung.coordinator.observe.metrics import NAMES, Counts, registry_of, text_of

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = MadeUpRun(tmp_path_factory.mktemp("run"), steps=100)
    counts = Counts()
    step = {"event": "step", "samples": 32, "seconds": 1.5, "tokens_per_second": 1000.0, "bytes_dense": 900}
    step |= {"bytes_updates": 10, "bytes_activations": 20, "bytes_other": 5}
    for event in (step, step, {"event": "warning"}, {"event": "eval"}):
        counts.add(event)
    text, kind = text_of(registry_of(run.record, counts, run.observed))
    assert kind.startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found[sample.name, tuple(value for _, value in sorted(sample.labels.items()))] = sample.value
    return found


def test_values(scraped: dict[Any, float]) -> None:
    assert scraped["farflung_step", ()] == 100 and scraped["farflung_steps_planned", ()] == 4000
    assert scraped["farflung_phase", ("training",)] == 1 and scraped["farflung_phase", ("waiting",)] == 0
    assert scraped["farflung_run_info", ("shakespeare-1b", "5f2c9a01d3e7b864", __version__)] == 1
    assert scraped["farflung_sent_bytes_total", ("updates",)] == 20 and scraped["farflung_tokens_total", ()] == 3000
    assert scraped["farflung_nodes", ("trains",)] == 4 and scraped["farflung_nodes", ("spare",)] == 2
    assert scraped["farflung_link_bandwidth_bytes_per_second", ("attic", "frankfurt-1")] == 2.5e6
    assert scraped["farflung_link_sent_bytes_total", ("attic", "frankfurt-1")] == 100 * 2_600_000
    assert scraped["farflung_bottleneck_load_ratio", ("upload", "attic")] > 0.6
    assert scraped["farflung_step_duration_seconds_bucket", ("1.0",)] == 0
    assert scraped["farflung_step_duration_seconds_bucket", ("2.0",)] == 2
    assert scraped["farflung_step_duration_seconds_count", ()] == 2
    assert scraped["farflung_step_duration_seconds_sum", ()] == 3.0
    assert scraped["farflung_warnings_total", ()] == 1


def test_every_name_of_the_table_is_scraped_and_no_other(scraped: dict[Any, float]) -> None:
    seen = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name, _ in scraped}
    ours = {name for name in seen if name.startswith("farflung_")}
    assert ours == {name.name for name in NAMES}


def test_names_follow_the_conventions() -> None:
    for one in NAMES:
        assert re.fullmatch(r"farflung_[a-z][a-z0-9_]*", one.name)
        assert one.name.endswith("_total") == (one.kind == "counter")
        assert not re.search(r"(milliseconds|_ms|_bits|_mb|_percent)", one.name)
        if "duration" in one.name or "age" in one.name or "latency" in one.name:
            assert "_seconds" in one.name


def test_a_run_that_has_not_begun(tmp_path: Path) -> None:
    text, _ = text_of(registry_of(lambda: {"phase": "waiting"}, Counts(), MadeUpRun(tmp_path, steps=1).observed))
    assert 'farflung_phase{phase="waiting"} 1.0' in text.decode() and "farflung_loss" in text.decode()


def test_the_documents_have_the_table() -> None:
    text = (ROOT / "docs" / "observing.md").read_text()
    rows = [
        f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels)} | {one.about} |"
        for one in NAMES
    ]
    missing = [row for row in rows if row not in text]
    assert not missing, "\n".join(missing)
    named = set(re.findall(r"^\| `(farflung_[a-z_]+)`", text, re.MULTILINE))
    assert {name for name in named if not name.startswith("farflung_own_")} == {one.name for one in NAMES}
