"""Searches for a placement side by side, on generated networks, at equal processor time.

    python -m benchmarks.placement [--networks 20] [--seeds 5] [--limits 1,5,20]
        [--lines FILE] [--alone S] [--json FILE]

The published cost (Yuan et al. 2022), 64 devices as 8 x 8. ``ours``: search_dtfm. ``annealer``: one run of simulated
annealing of uniformly drawn swaps from a random start, compiled as ours is, as long as its time allows. ``original``:
the published search (crossover of five devices, cyclic moves by gain) with this project's exact cost, which is some
hundred times faster than theirs. Runs of the three take turns, so that a busy moment of the machine meets all. Times
are CPU seconds; compiling (a few seconds, once, then cached) is not counted. With --lines a run goes on where it ended.
``best`` is the least that any run of the file found on a network, with whatever limit: what is left to gain.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any

import numba
import numpy

from farflung.scheduler import Device, Network
from farflung.scheduler.published.dtfm import Dtfm
from farflung.scheduler.published.search import search_dtfm
from farflung.scheduler.timing import compiled

RESULTS = Path(__file__).parent / "results" / "placement.json"
DEVICES, SIDE, ALONE = 64, 8, 1000
"""Devices, stages and pipelines, and the seed of runs of ours alone."""
OTHERS = ("annealer", "original")
_numba: Any = numba


def made(latency: numpy.ndarray, bandwidth: numpy.ndarray, regions: list[int] | None = None) -> Network:
    """latency: s, bandwidth: bit/s, [n, n] each."""
    numpy.fill_diagonal(latency, 0.0)
    homes = [""] * DEVICES if regions is None else [f"r{home}" for home in regions]
    devices = [Device(f"d{at}", region=home) for at, home in enumerate(homes)]
    return Network(devices, latency, bandwidth)


def lines(random: numpy.random.Generator, sigma: float, down: float) -> Network:
    """Everybody behind a line of its own, log-normal; the way down ``down`` times as fast."""
    up = 1e9 * random.lognormal(0, sigma, DEVICES)
    delay = random.uniform(0.002, 0.06, DEVICES)
    bandwidth = numpy.minimum(up[:, None], down * up[None, :])
    return made(delay[:, None] + delay[None, :], bandwidth)


def regions(random: numpy.random.Generator, count: int, equal: bool, named: bool) -> Network:
    """Places far apart, 2 Gbit/s inside of each."""
    weight = numpy.full(count, 1 / count) if equal else random.dirichlet(numpy.full(count, 3))
    home = numpy.sort(random.choice(count, DEVICES, p=weight))
    where = random.uniform(0, 1, (count, 2))
    far = numpy.linalg.norm(where[:, None] - where[None, :], axis=2)
    rate = numpy.where(numpy.eye(count) > 0, 2e9, 1.2e9 / (1 + 2.5 * far) * random.uniform(0.7, 1.3, (count, count)))
    latency = 0.005 + 0.12 * far
    square = numpy.ix_(home, home)
    return made(latency[square], rate[square], home.tolist() if named else None)


def stars(random: numpy.random.Generator) -> Network:
    """A few machines with fat lines, many with thin ones: a thin one is fast to fat ones alone."""
    fat = random.random(DEVICES) < 0.25
    rate = numpy.where(fat[:, None] & fat[None, :], 5e9, numpy.where(fat[:, None] | fat[None, :], 0.9e9, 0.15e9))
    delay = numpy.where(fat, 0.003, random.uniform(0.01, 0.08, DEVICES))
    rate = rate * random.uniform(0.8, 1.2, rate.shape)
    return made(delay[:, None] + delay[None, :], rate)


def two_sites(random: numpy.random.Generator) -> Network:
    """Two sites and one line between them."""
    home = (numpy.arange(DEVICES) >= random.integers(20, 44)).astype(int)
    near = home[:, None] == home[None, :]
    rate = numpy.where(near, 8e9 * random.uniform(0.5, 1, (DEVICES, DEVICES)), 0.25e9)
    return made(numpy.where(near, 0.001, 0.04), rate)


def bad_links(random: numpy.random.Generator) -> Network:
    """A good network, in which every device has one partner that it hardly reaches."""
    rate = 1.5e9 * random.uniform(0.7, 1.3, (DEVICES, DEVICES))
    partner = random.permutation(DEVICES)
    rate[numpy.arange(DEVICES), partner] = rate[partner, numpy.arange(DEVICES)] = 0.02e9
    return made(numpy.full((DEVICES, DEVICES), 0.02), rate)


def networks() -> dict[str, Network]:
    """Twenty networks of six kinds, always the same."""
    kinds: dict[str, Callable[[numpy.random.Generator], Network]] = {
        "lines 0.8": lambda random: lines(random, 0.8, 1e6),
        "lines 0.8 both ways": lambda random: lines(random, 0.8, 1.0),
        "volunteers": lambda random: lines(random, 1.2, 5.0),
        "4 regions": lambda random: regions(random, 4, True, True),
        "12 regions": lambda random: regions(random, 12, False, True),
        "12 regions unnamed": lambda random: regions(random, 12, False, False),
        "7 regions uneven": lambda random: regions(random, 7, False, True),
        "stars": stars,
        "two sites": two_sites,
        "bad links": bad_links,
    }
    return {f"{name} {seed}": kind(numpy.random.default_rng(seed)) for seed in range(2) for name, kind in kinds.items()}


def annealer(model: Dtfm, limit: float, seed: int) -> float:
    """Uniform swaps from a random start, cooled once over the time that there is."""
    random, end = numpy.random.default_rng(seed), time.process_time() + limit
    places = random.permutation(DEVICES).reshape(SIDE, SIDE)
    value = model.cost(places.T).total
    before = time.process_time()
    simple(2 * model.data, model.pipe, places.copy(), 20_000, 0.01 * value, 0.01 * value, seed)
    rate = 20_000 / (time.process_time() - before)
    moves = int(0.97 * rate * (end - time.process_time()))
    simple(2 * model.data, model.pipe, places, moves, 0.02 * value, 1e-5 * value, seed)
    return model.cost(places.T).total


@_numba.njit(cache=True)
def value_of(data: Any, pipe: Any, places: Any) -> Any:
    rows, stages = places.shape
    most, path = 0.0, 0.0
    for stage in range(stages):
        slowest = 0.0
        for row in range(rows):
            mine = 0.0
            for other in range(rows):
                mine += data[places[row, stage], places[other, stage]]
            most = max(most, mine)
            if stage + 1 < stages:
                slowest = max(slowest, pipe[places[row, stage], places[row, stage + 1]])
        path += slowest
    return most + 2 * path


@_numba.njit(cache=True)
def simple(data: Any, pipe: Any, places: Any, moves: Any, hot: Any, cold: Any, seed: Any) -> None:
    numpy.random.seed(seed)
    rows, stages = places.shape
    now = value_of(data, pipe, places)
    best, kept = now, places.copy()
    for move in range(moves):
        temperature = hot * (cold / hot) ** (move / moves)
        a, b = numpy.random.randint(rows * stages), numpy.random.randint(rows * stages)
        i, j, k, m = a // stages, a % stages, b // stages, b % stages
        places[i, j], places[k, m] = places[k, m], places[i, j]
        value = value_of(data, pipe, places)
        if value <= now or numpy.random.random() < numpy.exp((now - value) / temperature):
            now = value
            if now < best:
                best, kept = now, places.copy()
        else:
            places[i, j], places[k, m] = places[k, m], places[i, j]
    places[:, :] = kept


def original(model: Dtfm, limit: float, seed: int) -> float:
    """The published search: 100 random partitions, then children by five devices, each improved by cyclic moves."""
    random, end = numpy.random.default_rng(seed), time.process_time() + limit
    population = []
    while len(population) < 100 and time.process_time() < end:
        groups = random.permutation(DEVICES).reshape(SIDE, SIDE)
        population.append((model.cost(groups).total, groups))
    best = min(value for value, _ in population)
    while time.process_time() < end:
        one, two = random.integers(0, len(population), 2)
        label = numpy.empty(DEVICES, dtype=numpy.int64)
        for number, group in enumerate(population[int(two)][1]):
            label[group] = number
        home = {int(device): number for number, group in enumerate(population[int(one)][1]) for device in group}
        for device in random.choice(DEVICES, 5, replace=False):
            label[device] = home[int(device)]
        sizes = numpy.bincount(label, minlength=SIDE)
        for device in range(DEVICES):
            if sizes[label[device]] > SIDE:
                free = int(numpy.argmax(sizes < SIDE))
                sizes[label[device]] -= 1
                sizes[free] += 1
                label[device] = free
        cyclic(model, label)
        groups = numpy.array([numpy.flatnonzero(label == number) for number in range(SIDE)])
        value = model.cost(groups).total
        worse = max(int(one), int(two), key=lambda at: population[at][0])
        if value < population[worse][0]:
            population[worse] = (value, groups)
        best = min(best, value)
    return best


def cyclic(model: Dtfm, label: numpy.ndarray) -> None:
    """One pass of moves of the owner of a group's fastest link to the group that is slowest to reach, in cycles."""
    locked = numpy.zeros(DEVICES, dtype=bool)
    for _ in range(SIDE):
        start, moved, gains = -1, [], []
        at = -1
        for _ in range(SIDE):
            best = (-numpy.inf, -1, -1, -1)
            for group in range(SIDE) if at < 0 else [at]:
                members = numpy.flatnonzero((label == group) & ~locked)
                inside = numpy.flatnonzero(label == group)
                if not len(members) or len(inside) < 2:
                    continue
                square = model.pipe[numpy.ix_(members, inside)] + numpy.where(members[:, None] == inside, numpy.inf, 0)
                device = int(members[square.min(axis=1).argmin()])
                reach = numpy.array([model.pipe[device, label == other].mean() for other in range(SIDE)])
                reach[group] = -numpy.inf
                gain = float(reach.max() - square.min())
                if gain > best[0]:
                    best = (gain, group, device, int(reach.argmax()))
            if best[1] < 0:
                break
            gain, group, device, target = best
            start = group if start < 0 else start
            locked[device] = True
            moved.append((device, group))
            gains.append(gain)
            label[device] = target
            at = target
            if target == start:
                break
        if at != start or sum(gains) <= 0:
            for device, group in reversed(moved):
                label[device] = group
            break


def compare(limits: list[float], seeds: int, count: int, lines_file: Path | None) -> list[dict[str, Any]]:
    """Runs what ``lines_file`` does not have yet, a line of JSON for each limit, network and seed, and returns all."""
    rows = [row for row in lines_of(lines_file) if row.get("limit") in limits and row["seed"] < seeds]
    had = {(row["limit"], row["network"], row["seed"]) for row in rows}
    made_networks = {name: (network, Dtfm(network, SIDE, SIDE)) for name, network in list(networks().items())[:count]}
    if len(rows) < len(limits) * seeds * len(made_networks):
        warm(next(iter(made_networks.values())))
    for limit, seed, (name, (network, model)) in product(limits, range(seeds), made_networks.items()):
        if (limit, name, seed) in had:
            continue
        row: dict[str, Any] = {"limit": limit, "network": name, "seed": seed}
        end = time.process_time() + limit
        row["ours"] = search_dtfm(network, SIDE, SIDE, end, seed, clock=time.process_time).total
        row["annealer"], row["original"] = annealer(model, limit, seed), original(model, limit, seed)
        rows.append(row)
        if lines_file is not None:
            with lines_file.open("a") as file:
                file.write(json.dumps(row) + "\n")
    return rows


def longer(seconds: float, count: int, lines_file: Path) -> None:
    """Adds a run of ours alone, of so many seconds and another seed, for each network that has none."""
    had = {row["network"] for row in lines_of(lines_file) if row.get("alone") == seconds}
    for name, network in list(networks().items())[:count]:
        if name not in had:
            began = time.process_time()
            found = search_dtfm(network, SIDE, SIDE, began + seconds, ALONE, clock=time.process_time).total
            row = {"alone": seconds, "network": name, "ours": found, "took": time.process_time() - began}
            with lines_file.open("a") as file:
                file.write(json.dumps(row) + "\n")


def lines_of(lines_file: Path | None) -> list[dict[str, Any]]:
    """What a file of lines has; nothing where there is none yet."""
    if lines_file is None or not lines_file.exists():
        return []
    return [json.loads(line) for line in lines_file.read_text().splitlines()]


def summary(rows: list[dict[str, Any]], known: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the seeds of each limit, network and search, printed, with how ours compares. known: rows of any
    kind, of which the best of a network is taken."""
    best: dict[str, float] = {}
    for row in [*rows, *known]:
        found = [row[search] for search in ("ours", *OTHERS) if search in row]
        best[row["network"]] = min(best.get(row["network"], numpy.inf), *found)
    result: dict[str, Any] = {"best": best}
    for limit in sorted({row["limit"] for row in rows}):
        middle: dict[str, dict[str, float]] = {}
        for name in [name for name in best if any((row["limit"], row["network"]) == (limit, name) for row in rows)]:
            mine = [row for row in rows if row["limit"] == limit and row["network"] == name]
            middle[name] = {search: round(median(row[search] for row in mine), 4) for search in ("ours", *OTHERS)}
            cells = [f"{search} {value:8.3f}" for search, value in (*middle[name].items(), ("best", best[name]))]
            print(f"{limit:>4g} s  {name:24}", *cells, f"{len(mine)} seeds", flush=True)
            middle[name]["seeds"] = len(mine)
        searches = ("ours", *OTHERS)
        over = {name: row["ours"] / min(row[search] for search in searches) - 1 for name, row in middle.items()}
        gains = {search: mean(1 - row["ours"] / row[search] for row in middle.values()) for search in OTHERS}
        better = mean(1 - row["ours"] / min(row[search] for search in OTHERS) for row in middle.values())
        could = {search: mean(1 - best[name] / row[search] for name, row in middle.items()) for search in searches}
        result[f"{limit:g}"] = {
            "networks": middle,
            "over_best_of_three": over,
            "mean_gain": gains,
            "mean_gain_over_better": better,
            "mean_left_to_best": could,
        }
        words = ", ".join(f"{gain:.2%} below {search}" for search, gain in gains.items())
        worst = max(over, key=lambda name: over[name])
        print(f"{limit:g} s: at most {over[worst]:.2%} over the best of the three ({worst}); in the mean {words}")
        words = ", ".join(f"{search} {part:.2%}" for search, part in could.items())
        print(f"{limit:g} s: {better:.2%} below the better of both; the best known is below them by {words}")
    return result


def warm(first: tuple[Network, Dtfm]) -> None:
    """Compiles what is compiled."""
    network, model = first
    if compiled.numba() is None:
        print("numba is not there: ours runs without it")
    search_dtfm(network, SIDE, SIDE, time.process_time() + 20, 0, rounds=1, clock=time.process_time)
    annealer(model, 0.1, 0)


def main() -> None:
    """Prints the medians and writes them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5, help="0: only what the file of lines has")
    parser.add_argument("--limits", default="1,5,20")
    parser.add_argument("--lines", type=Path, help="a file of JSON lines, to which runs are added that it lacks")
    parser.add_argument("--alone", type=float, default=0.0, help="seconds of runs of ours that are added for `best`")
    parser.add_argument("--json", type=Path, help=f"where to write the medians, {RESULTS.name} for instance")
    asked = parser.parse_args()
    limits = [float(limit) for limit in asked.limits.split(",")]
    if asked.alone:
        if asked.lines is None:
            parser.error("--alone adds to a file: give --lines FILE")
        longer(asked.alone, asked.networks, asked.lines)
    if asked.seeds:
        rows = compare(limits, asked.seeds, asked.networks, asked.lines)
    else:
        rows = [row for row in lines_of(asked.lines) if row.get("limit") in limits]
    made = summary(rows, lines_of(asked.lines))
    if asked.json:
        asked.json.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
