"""The process that searches for plans: a line of JSON in for each question, a line out for each answer.

    python -m farflung.coordinator.planning.search_process [--beside]

``--beside``: its answers are not urgent, so it runs at the lowest priority. It ends when its input ends. Only plans go
to its stdout; what a search prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time

from ...scheduler import CodecChoice, Device, Layer, Plan, PlanError, Workload
from ...scheduler.trials import Trial, Tuning
from ...scheduler.workloads.early import EarlyRounds
from ...scheduler.workloads.workload import Interval, Offload, Size
from ..membership.questions import Question
from ..records import Records
from .planner import Search, search

BESIDE = "--beside"
SEARCHES = Records(
    Search, Workload, Layer, CodecChoice, Interval, Size, Offload, EarlyRounds, Device, Question, Plan, Tuning, Trial
)


def answer(line: str) -> str:
    """The answer to a line as JSON: ``plan``, or ``error`` where there is none; and ``seconds`` of processor time."""
    began = time.process_time()
    found: dict[str, object]
    try:
        found = {"plan": search(SEARCHES.read(line)).to_json()}
    except PlanError as error:
        found = {"error": str(error)}
    except Exception as error:  # whoever asked says it; the next question is another
        found = {"error": f"the search for a plan failed: {error!r}"}
    return json.dumps({**found, "seconds": time.process_time() - began})


def main() -> None:
    """Answers until the input ends."""
    if BESIDE in sys.argv:
        os.nice(10)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(answer(line) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
