"""Predicts iteration times that the authors of DT-FM measured on 64 V100, and prints how far off the prediction is.

    python -m benchmarks.predict_paper FILE [--json]
    python -m benchmarks.predict_paper FILE --leave-one-out    # minutes

FILE has the shape of their table in JSON: cases -> "Case N ..." -> "L24 B1024" -> ours_with_scheduler and
ours_without_scheduler (seconds, one for each seed 2022, 2023, 2024), and the rank maps of the seeds (those that were
published where the file has none). Rows whose placement is not known are left out.

What is known of their runs (their repository, DS3Lab/DT-FM): GPipe with recompute, microbatch 1, 8 pipelines of 8
stages; a pipeline takes its batch in flushes of 64 microbatches; receives and sends of a device take turns on one NCCL
communicator, whose buffers hold half a message (4 of 8 MiB); gradients in fp16, exchanged after the last backward.
With the scheduler, pipelines are 8 consecutive ranks; without, ranks follow a random map. Cases 1 and 2 ran in one
data centre without traffic shaping, where the GPUs of an instance share its network card.

Fitted: the speed of a V100, on case 1 alone. The goodput of the three kinds of network card and of the gradient
exchange are properties of their runtime and were fitted once over cases 1 to 4; case 5 was never used.

``--leave-one-out`` fits all five numbers anew on three cases and reports the errors of the fourth, which are those of a
forecast. The network cards of cases 1 and 2 are in no other case: where one is left out, it gets the goodput of the
other data centre's.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy

from farflung.scheduler import Device, Network, PlanError
from farflung.scheduler.timing.estimate import Cut, Estimator
from farflung.scheduler.timing.rounds import round_seconds, site_seconds
from farflung.scheduler.timing.simulated import run
from farflung.scheduler.timing.transport import Transport
from farflung.scheduler.workloads.jobs import paper_workload

NETWORKS = Path(__file__).parent / "data" / "dtfm_networks.json"
RANK_MAPS = NETWORKS.with_name("dtfm_rank_maps.json")
SHAPED = {3: "case3_multi_datacenter", 4: "case4_regional_us_tc", 5: "case5_worldwide_tc"}
HOSTS = {1: ([8] * 8, 25.0), 2: ([1, 1, 1, 1, 4] * 8, 10.0)}
"""GPUs of each instance in rank order, and Gbit/s of an instance's card."""
ONE_FLOW = 10.0
"""Gbit/s that one flow between two instances can have."""
GOODPUT = {1: 0.42, 2: 0.65, 3: 0.87, 4: 0.87, 5: 0.87}
RING_GOODPUT = 0.57
FLUSH = 64
TFLOPS = 55.0
"""A V100's speed as fitted on case 1 of the published table, for files without case 1."""
COUPLED = Transport(pieces=4, coupled=True, send_buffer=2, receive_buffer=3)


@dataclass(frozen=True)
class Row:
    """One measurement with its placement, int [8, 8] of ranks."""

    case: int
    name: str
    kind: str
    seed: int
    layers: int
    batch: int
    measured: float
    places: numpy.ndarray


def rows_of(table: dict[str, Any]) -> list[Row]:
    """All rows whose placement is known. PlanError where the file is not of the described shape."""
    found: list[Row] = []
    try:
        published = json.loads(RANK_MAPS.read_text(encoding="utf-8"))["maps"]
        maps = next((value for key, value in table.items() if key.startswith("random_rank_maps")), published)
        for title, rows in table["cases"].items():
            case = int(title.split()[1])
            for name, measured in rows.items():
                layers, batch = (int(part[1:]) for part in name.split())
                ordered = [value for value in measured.get("ours_with_scheduler", []) if value is not None]
                if ordered:
                    mean = float(numpy.mean(ordered))
                    found.append(Row(case, name, "with", 0, layers, batch, mean, numpy.arange(64).reshape(8, 8)))
                for seed, value in enumerate(measured.get("ours_without_scheduler", [])):
                    if value is not None and seed < len(maps):
                        places = numpy.empty(64, dtype=numpy.int64)
                        places[numpy.array(maps[seed])] = numpy.arange(64)
                        found.append(Row(case, name, "without", seed, layers, batch, value, places.reshape(8, 8)))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise PlanError(f"the file is not a table of measured iterations: {error!r}") from error
    if not found:
        raise PlanError("the file has no row whose placement is known")
    return found


def network_of(case: int, goodput: float) -> Network:
    """The network of a case, its bandwidths times the goodput."""
    if case in HOSTS:
        sizes, card = HOSTS[case]
        home = numpy.repeat(numpy.arange(len(sizes)), sizes)
        devices = [Device(f"gpu-{rank}", region=f"instance-{host}") for rank, host in enumerate(home)]
        inside = home[:, None] == home[None, :]
        bandwidth = numpy.where(inside, 100e9, min(card, ONE_FLOW) * goodput * 1e9)
        shared = {f"instance-{host}": card * goodput * 1e9 for host in range(len(sizes))}
        zero = numpy.zeros((64, 64))
        return Network(devices, zero, bandwidth, site_upload=shared, site_download=shared)
    if case not in SHAPED:
        raise PlanError(f"the network of case {case} is not known: cases are 1 to 5")
    network = Network.load(f"{NETWORKS}#{SHAPED[case]}")
    return Network(network.devices, network.latency, network.bandwidth * goodput)


@dataclass(frozen=True)
class Constants:
    """The five fitted numbers. goodput: of each case's network, of which cases 3 to 5 have one kind."""

    tflops: float
    goodput: dict[int, float]
    ring: float

    def with_kind(self, cases: tuple[int, ...], value: float) -> Constants:
        return replace(self, goodput={**self.goodput, **dict.fromkeys(cases, value)})


PUBLISHED = Constants(TFLOPS, GOODPUT, RING_GOODPUT)
NEUTRAL = Constants(50.0, dict.fromkeys(GOODPUT, 0.7), 0.7)
"""Where a fit begins that must know nothing of the case that is left out."""
WIDTHS = (0.4, 0.12, 0.04)
"""How far each sweep of a fit looks, as a part of a number."""
KINDS = ((1,), (2,), (3, 4, 5))
"""Cases with the same kind of network card."""


FITTED_LAYERS = 24
"""Of the model in the rows that are fitted; all rows of the case that is left out are predicted."""


class Predictor:
    """Predicted seconds of rows; what two rows share is simulated once."""

    def __init__(self, tflops: float) -> None:
        self.constants = replace(PUBLISHED, tflops=tflops)
        self.flushes: dict[tuple[object, ...], float] = {}
        self.rounds: dict[tuple[object, ...], float] = {}

    def seconds(self, row: Row) -> float:
        """A step: its flushes, and the exchange of gradients."""
        now = self.constants
        goodput = now.goodput[row.case]
        key = (row.case, row.layers, row.places.tobytes(), now.tflops, goodput)
        ring = (*key[:3], now.ring)
        workload = paper_workload(row.layers, FLUSH * 8, efficiency=now.tflops / 50.0)
        per = row.layers // 8
        cut = Cut(workload, tuple((stage * per, stage * per + per - 1) for stage in range(8)))
        if key not in self.flushes:
            estimator = Estimator(network_of(row.case, goodput), workload)
            _, self.flushes[key] = run(estimator, row.places, cut, (FLUSH,) * 8, "gpipe", COUPLED, whole=True)
        if ring not in self.rounds:
            network = network_of(row.case, now.ring)
            sent = numpy.zeros((64, 64))
            groups = [
                round_seconds(network, sent, row.places[:, stage], float(cut.update[stage]), "ring")
                for stage in range(8)
            ]
            self.rounds[ring] = max(*groups, site_seconds(network, row.places, cut.update, "ring"))
        return self.flushes[key] * row.batch / (8 * FLUSH) + self.rounds[ring]

    def error(self, rows: list[Row]) -> float:
        """The mean absolute error."""
        return float(numpy.mean([abs(self.seconds(row) / row.measured - 1) for row in rows]))


def fit(predictor: Predictor, rows: list[Row]) -> Constants:
    """The five numbers with the least mean absolute error on these rows, one after the other, in ever smaller steps;
    those that no row depends on stay."""
    cases = {row.case for row in rows}
    for width in WIDTHS:
        for name in ("tflops", "ring", *KINDS):
            if isinstance(name, tuple) and not cases & set(name):
                continue
            before, tried = predictor.constants, []
            for step in numpy.linspace(1 - width, 1 + width, 5):
                if isinstance(name, tuple):
                    value = min(1.0, before.goodput[name[0]] * step)
                    predictor.constants = before.with_kind(name, value)
                else:
                    predictor.constants = replace(before, **{name: getattr(before, name) * step})
                tried.append((predictor.error(rows), predictor.constants))
            predictor.constants = min(tried, key=lambda one: one[0])[1]
    return predictor.constants


def leave_one_out(rows: list[Row]) -> dict[int, dict[str, Any]]:
    """Of each case, its errors by the numbers that the other cases give."""
    found: dict[int, dict[str, Any]] = {}
    predictor = Predictor(TFLOPS)
    for case in sorted({row.case for row in rows}):
        predictor.constants = NEUTRAL
        others = [row for row in rows if row.case != case and row.layers == FITTED_LAYERS]
        made = fit(predictor, others)
        if case in HOSTS:  # its kind of card is in no other case
            made = made.with_kind((case,), made.goodput[3 - case])
        predictor.constants = made
        own = [row for row in rows if row.case == case]
        errors = [predictor.seconds(row) / row.measured - 1 for row in own]
        predicted = [predictor.seconds(row) for row in own]
        found[case] = {
            "rows": len(own),
            "fitted_on_others": round(predictor.error(others), 4),
            "mean_absolute_error": round(float(numpy.mean(numpy.abs(errors))), 4),
            "mean_error": round(float(numpy.mean(errors)), 4),
            "worst": round(float(max(errors, key=abs)), 4),
            "rank_correlation": round(rank_correlation([row.measured for row in own], predicted), 4),
            "constants": {"tflops": round(float(made.tflops), 1), "goodput": round(float(made.goodput[case]), 3),
                          "ring": round(float(made.ring), 3)},
        }  # fmt: skip
        print(f"case {case} left out: {found[case]}", flush=True)
    return found


def fit_speed(rows: list[Row]) -> float:
    """The V100's tflops with which case 1's rows with the scheduler come out right on average."""
    known = [row for row in rows if row.case == 1 and row.kind == "with"]
    if not known:
        return TFLOPS
    low, high = 30.0, 90.0
    for _ in range(10):
        middle = (low + high) / 2
        predictor = Predictor(middle)
        error = float(numpy.mean([predictor.seconds(row) / row.measured - 1 for row in known]))
        low, high = (middle, high) if error > 0 else (low, middle)
    return (low + high) / 2


def ranks(values: list[float]) -> numpy.ndarray:
    """Ranks with ties as their mean."""
    array = numpy.array(values)
    return numpy.array([((array < value).sum() + (array <= value).sum() - 1) / 2 for value in array])


def rank_correlation(one: list[float], two: list[float]) -> float:
    """Spearman's."""
    if len(set(one)) < 2 or len(set(two)) < 2:
        return 1.0
    return float(numpy.corrcoef(ranks(one), ranks(two))[0, 1])


def report(table: dict[str, Any]) -> dict[str, Any]:
    """Errors of all rows, by case and together."""
    rows = rows_of(table)
    tflops = fit_speed(rows)
    predictor = Predictor(tflops)
    lines = []
    for row in rows:
        predicted = predictor.seconds(row)
        lines.append(
            {
                "case": row.case,
                "row": row.name,
                "scheduler": row.kind,
                "seed": 2022 + row.seed,
                "measured_s": round(row.measured, 3),
                "predicted_s": round(predicted, 3),
                "error": round(predicted / row.measured - 1, 4),
            }
        )
    cases = {}
    for case in sorted({row.case for row in rows}):
        mine = [line for line in lines if line["case"] == case]
        errors = [abs(line["error"]) for line in mine]
        cases[case] = {
            "rows": len(mine),
            "mean_absolute_error": round(float(numpy.mean(errors)), 4),
            "worst": round(max(errors), 4),
            "rank_correlation": round(
                rank_correlation([line["measured_s"] for line in mine], [line["predicted_s"] for line in mine]), 4
            ),
        }
    errors = [abs(line["error"]) for line in lines]
    return {
        "tflops": round(tflops, 2),
        "rows": lines,
        "cases": cases,
        "mean_absolute_error": round(float(numpy.mean(errors)), 4),
        "worst": round(max(errors), 4),
        "lowest_rank_correlation": min(value["rank_correlation"] for value in cases.values()),
    }


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--leave-one-out", action="store_true", help="fit on the other cases, report the one left out")
    arguments = parser.parse_args()
    try:
        table = json.loads(arguments.file.read_text(encoding="utf-8"))
        if arguments.leave_one_out:
            leave_one_out(rows_of(table))
            return 0
        result = report(table)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps(result))
        return 0
    print(f"a V100 fitted on case 1: {result['tflops']} tflops (forward of 3 layers and one sequence: 0.72 Tflop)")
    print(f"{'case':>4} {'row':<10} {'scheduler':<9} {'seed':>5} {'measured s':>10} {'predicted s':>11} {'error':>7}")
    for line in result["rows"]:
        print(
            f"{line['case']:>4} {line['row']:<10} {line['scheduler']:<9} {line['seed']:>5} {line['measured_s']:>10.2f} "
            f"{line['predicted_s']:>11.2f} {100 * line['error']:>+6.1f}%"
        )
    for case, values in result["cases"].items():
        print(
            f"case {case}: {values['rows']} rows, mean absolute error {100 * values['mean_absolute_error']:.1f} %, "
            f"worst {100 * values['worst']:.1f} %, rank correlation {values['rank_correlation']:.3f}"
        )
    print(
        f"all: mean absolute error {100 * result['mean_absolute_error']:.1f} %, worst {100 * result['worst']:.1f} %, "
        f"lowest rank correlation {result['lowest_rank_correlation']:.3f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
