"""Tokens per second against the number of simulated volunteers, with log-normal lines and churn.

    python -m benchmarks.scale --coordinator [--streams] [--nodes N ...] [--seconds S] [--json]
    python -m benchmarks.scale [--devices N ...] [--picture OUT.svg] [--hours H] [--churn PART] [--json]

A volunteer has an uplink around 50 Mbit/s and a downlink around 200 Mbit/s (log-normal, sigma 0.8), a device around
30 Tflop/s (sigma 0.5), 8 to 24 GB, and lives in one of the ten measured cities' regions. Nothing is trained: seconds
of a step are the scheduler's estimate, and churn takes devices away at random while they are replaced by spares.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from farflung.scheduler import Device, Workload
from farflung.scheduler.planning.volunteers import Volunteers, plan_volunteers, round_of_volunteers
from farflung.scheduler.timing.estimate import Cut, Estimator
from farflung.scheduler.workloads.decoders import Shape, decoder_layers

NETWORKS = Path(__file__).parent / "data" / "dtfm_networks.json"
SIZES = (100, 300, 1_000, 3_000, 10_000)


def draw_volunteers(count: int, seed: int = 0) -> Volunteers:
    """`count` volunteers."""
    content = json.loads(NETWORKS.read_text(encoding="utf-8"))["cities10_aws"]
    random = numpy.random.default_rng(seed)
    regions = content["regions"]
    latency = numpy.array([[10.0 if value is None else value for value in row] for row in content["latency_ms"]]) / 1e3
    home = random.integers(0, len(regions), count)
    uploads = 50e6 * random.lognormal(0.0, 0.8, count)
    downloads = 200e6 * random.lognormal(0.0, 0.8, count)
    speeds = 30 * random.lognormal(0.0, 0.5, count)
    rooms = random.choice([8e9, 12e9, 16e9, 24e9], count)
    devices = [
        Device(f"v{i}", regions[home[i]], float(speeds[i]), float(rooms[i]), float(uploads[i]), float(downloads[i]))
        for i in range(count)
    ]
    return Volunteers(devices, regions, latency)


def job(count: int) -> Workload:
    """A 1.3 B model: four microbatches of one sequence a step for each device, CocktailSGD every 10 steps, int4."""
    return Workload(
        decoder_layers(Shape("gpt2", 24, 2048, 2048, 50257, heads=16)),
        batch=4 * count,
        update_bits=0.16,
        every=10,
        overlap=10,
        activation_bits=4.125,
        gradient_bits=8.125,
        optimizer_bytes=20,
        activation_bytes=2,
        recompute=True,
        tokens_per_sample=2048,
        efficiency=0.5,
    )


@dataclass
class Point:
    """One number of devices."""

    devices: int
    training: int
    stages: int
    pipelines: int
    plan_s: float
    plan_cpu_s: float
    step_s: float
    round_s: float
    tokens_per_second: float
    under_churn: float
    megabytes: float


def measure(count: int, hours: float, churn: float, limit: float, seed: int) -> Point:
    """Plans for `count` volunteers and lets them come and go."""
    volunteers, workload = draw_volunteers(count, seed), job(count)
    wall, cpu = time.monotonic(), time.process_time()
    made = plan_volunteers(volunteers, workload, time_limit=limit, seed=seed)
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    cut = Cut(workload, made.stages)
    at = {device.name: index for index, device in enumerate(volunteers.devices)}
    ends = []
    for row, share in zip(made.pipelines, made.microbatches, strict=True):
        estimator = Estimator(volunteers.network([at[node] for node in row]), workload)
        fixed, period = estimator.rows(numpy.arange(len(row))[None], cut)
        ends.append(float(fixed[0] + share * period[0]))
    rounds = round_of_volunteers(volunteers, made, workload)
    step = max(max(ends), rounds / workload.every)
    tokens = workload.batch * workload.tokens_per_sample / step
    lost = churned(volunteers, made, workload, step, hours, churn, seed)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Point(
        count,
        len(made.nodes),
        len(made.stages),
        len(made.pipelines),
        wall,
        cpu,
        step,
        rounds,
        tokens,
        tokens * (1 - lost),
        peak,
    )


def churned(
    volunteers: Volunteers, made: Any, workload: Workload, step: float, hours: float, churn: float, seed: int
) -> float:
    """The part of the work that leaving devices cost in `hours`: a broken pipeline is out until a spare has fetched
    its stage over its own line and then works again; without a spare it waits for a joiner (one for every leaver)."""
    random = numpy.random.default_rng(seed + 1)
    at = {device.name: device for device in volunteers.devices}
    leaves = random.poisson(churn * len(volunteers) * hours)
    spares = len(made.spares)
    bits = float(Cut(workload, made.stages).update.max()) / workload.update_bits * 32
    lines = numpy.array([at[node].download for node in made.nodes])
    training = len(made.nodes) / len(volunteers)
    outage = 0.0
    for _ in range(leaves):
        if random.random() > training:
            continue  # a spare left
        fetch = bits / float(random.choice(lines))
        waits = 0.0
        if spares > 0:
            spares -= 1
        else:
            waits = float(random.exponential(3600 / max(churn * len(volunteers), 1e-9)))
        outage += step + fetch + waits
        spares += random.random() < 1.0  # someone else joined meanwhile
    return min(1.0, outage / (hours * 3600 * max(len(made.pipelines), 1)))


def picture(points: list[Point]) -> str:
    """Tokens per second against devices, both logarithmic, as SVG."""
    width, height, left, bottom = 720, 460, 80, 60
    x = numpy.log10([point.devices for point in points])
    values = [[point.tokens_per_second for point in points], [point.under_churn for point in points]]
    y = numpy.log10(numpy.array(values))
    low, high = numpy.floor(y.min()), numpy.ceil(y.max())
    across = left + (x - x.min()) / max(float(numpy.ptp(x)), 1e-9) * (width - left - 40)
    down = height - bottom - (y - low) / max(high - low, 1e-9) * (height - bottom - 40)
    body = [f'<rect width="{width}" height="{height}" fill="white"/>']
    for power in range(int(low), int(high) + 1):
        at = height - bottom - (power - low) / max(high - low, 1e-9) * (height - bottom - 40)
        body.append(f'<line x1="{left}" x2="{width - 40}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
        body.append(f'<text x="{left - 8}" y="{at + 4:.1f}" font-size="12" text-anchor="end">1e{power}</text>')
    foot = f'y="{height - bottom + 20}" font-size="12" text-anchor="middle"'
    body += [
        f'<text x="{place:.1f}" {foot}>{point.devices}</text>' for point, place in zip(points, across, strict=True)
    ]
    for row, colour in zip(down, ("#3366cc", "#dc7a1e"), strict=True):
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, row, strict=True))
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        body += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4" fill="{colour}"/>' for a, b in zip(across, row, strict=True)]
    body.append(f'<text x="{left}" y="22" font-size="14">tokens a second against simulated volunteers</text>')
    body.append(f'<text x="{left + 380}" y="22" font-size="12" fill="#3366cc">undisturbed</text>')
    body.append(f'<text x="{left + 480}" y="22" font-size="12" fill="#dc7a1e">under churn</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">'
    return head + "".join(body) + "</svg>\n"


def main() -> None:
    """Prints the table and writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--churn", type=float, default=0.05, help="part of the devices that leaves in an hour")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for a plan")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--coordinator", action="store_true", help="what one coordinator costs (coordinator_load.py)")
    parser.add_argument("--streams", action="store_true", help="the same over gRPC (coordinator_streams.py)")
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1_000])
    parser.add_argument("--seconds", type=int, default=20, help="of training, simulated")
    arguments = parser.parse_args()
    if arguments.coordinator:
        # Loaded here: what a plan takes of memory must not count a coordinator.
        load = importlib.import_module("farflung.benchmarks.coordinator_load")
        load.report(arguments.nodes, arguments.seconds, arguments.json, arguments.streams)
        return
    columns = list(Point.__dataclass_fields__)
    if not arguments.json:
        print("  ".join(f"{name:>12}" for name in columns))
    points = []
    for count in arguments.devices:
        point = measure(count, arguments.hours, arguments.churn, arguments.limit, arguments.seed)
        points.append(point)
        if not arguments.json:
            print("  ".join(f"{getattr(point, name):>12.5g}" for name in columns), flush=True)
    if arguments.json:
        print(json.dumps([vars(point) for point in points]))
    if arguments.picture:
        arguments.picture.write_text(picture(points), encoding="utf-8")


if __name__ == "__main__":
    main()
