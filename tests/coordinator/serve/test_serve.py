"""``serve`` as the front door calls it, in a process of its own: signals and exit status."""

import json
import signal
import subprocess
import sys

import pytest

from farflung.coordinator.observe.status import read_status
from farflung.coordinator.store.store import Store
from farflung.coordinator.trust.links import issue, revoke_ticket
from farflung.job.data.facts import LayerProfile, Profile
from farflung.proto.errors import JobError
from farflung.proto.words.link import parse_link

JOB = """\
[run]
steps = 3
[model]
family = "gpt2"
layers = 1
width = 8
heads = 2
context = 16
[data]
text = ["text.txt"]
"""
LAYERS = [
    LayerProfile(name=name, parameters=10, flops_per_sample=1e9, activation_elements_per_sample=8)
    for name in ("embedding", "block 0", "head")
]
PROFILE = Profile(layers=LAYERS, tied=False, family="gpt2").model_dump_json()
CODE = f"""
import json, sys
from farflung.coordinator.serve.serve import serve
say = lambda event: print(json.dumps(event), flush=True)
profile = (sys.executable, "-c", {"import sys; sys.stdin.read(); print(" + repr(PROFILE) + ")"!r})
status = serve(sys.argv[1], sys.argv[2], "127.0.0.1:0", emit=say, profile_command=profile)
assert "torch" not in sys.modules
sys.exit(status)
"""


def test_signals_and_tickets(tmp_path):
    (tmp_path / "text.txt").write_text("to be or not to be\n" * 100)
    (tmp_path / "job.toml").write_text(JOB)
    for number in (signal.SIGINT, signal.SIGTERM):
        words = [sys.executable, "-c", CODE, str(tmp_path / "job.toml"), str(tmp_path / "state")]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            said = (json.loads(line) for line in process.stdout)
            link = parse_link(next(event["link"] for event in said if event["event"] == "listening"))
            made = issue(tmp_path / "state", ttl="1h", uses=2)
            assert (made.host, made.port, made.run, made.fingerprint) == (
                link.host,
                link.port,
                link.run,
                link.fingerprint,
            )
            assert made.ticket != link.ticket
            revoke_ticket(tmp_path / "state", made.ticket.split(".")[0])
            assert read_status(tmp_path / "state")["running"]
            process.send_signal(number)
            _, errors = process.communicate(timeout=30)
        assert process.returncode == 130 and errors == "", errors
    status = read_status(tmp_path / "state")
    assert status["phase"] == "interrupted" and not status["running"] and status["term"] == 2
    store = Store(tmp_path / "state")
    assert [ticket.revoked for ticket in store.tickets.all()] == [False, True, False, True]
    store.close()


async def test_a_job_that_was_wrong_is_corrected_and_started_again(cluster):
    """No run has begun with it: what its error said to write may be written."""
    with pytest.raises(JobError):
        await cluster.coordinator(cluster.job(("context = 16", "context = 100000"))).task
    await cluster.coordinator(cluster.job()).event("listening")
