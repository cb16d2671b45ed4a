"""Money and time in words: prices of one's own, deadlines, and the cheapest machines that keep one."""

import re

import pytest

from farflung.cli.planning.plan import run
from farflung.scheduler import PlanError
from farflung.scheduler.networks.catalogue import cluster_of
from farflung.scheduler.networks.wishes import seconds_of, speed_for, tokens_of, with_prices
from farflung.scheduler.planning.cost import parts

WORDS = "1xH100@oregon 2x4090@home:200mbit/20mbit"
JOB = {
    "run": {"steps": 1000},
    "model": {"family": "gpt2", "layers": 4, "width": 256, "heads": 4, "context": 128},
    "train": {"batch": 8, "microbatch": 1},
    "updates": {"mode": "delta", "every": 50},
}
TOKENS = 1000 * 8 * 128


def test_tokens_and_times() -> None:
    assert [tokens_of(text) for text in ("5000", "300M", "1.5T", "1e9")] == [5000, 300e6, 1.5e12, 1e9]
    assert [seconds_of(text) for text in ("36h", "30d", "2w")] == [129600, 2592000, 1209600]
    assert speed_for(864e3, "1d") == 10


def test_prices_are_of_a_device_a_place_or_a_card() -> None:
    network = with_prices(cluster_of(WORDS), "4090=0.3, home/1-4090=1 oregon=0")
    assert [device.price for device in network.devices] == [0.0, 0.3, 1.0]
    assert network.site_upload == {"home": 20e6}


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ({"price": "4090"}, "'4090' is not NAME=DOLLARS"),
        ({"price": "4090=-1"}, "is not NAME=DOLLARS"),
        ({"price": "4090=1e300"}, "is not NAME=DOLLARS"),
        ({"price": "A100=1"}, "a price is given for 'a100', which is no device, place or card"),
        ({"deadline": "soon", "tokens": "1B"}, "'soon' is not a time, like 36h, 30d or 2w"),
        ({"deadline": "0d", "tokens": "1B"}, "'0d' is not a time"),
        ({"deadline": "3d"}, "a deadline needs to know for how many tokens: give --tokens 10B"),
        ({"tokens": "many"}, "'many' is not a number of tokens"),
        ({"tokens": "1e300"}, "'1e300' is not a number of tokens"),
    ],
)
def test_wishes_that_mean_nothing(wish: dict, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        run(WORDS, **wish)


def test_the_cheapest_machines_for_a_deadline() -> None:
    """With days for what takes minutes the machines that are free train it; in a hurry those that are fast."""
    leisure = run(WORDS, JOB, time_limit=30, price="home=0", deadline="30d")
    assert leisure["finish"] == {"tokens": TOKENS, "days": pytest.approx(leisure["finish"]["days"]), "dollars": 0.0}
    assert {node.partition("/")[0] for row in leisure["pipelines"] for node in row} == {"home"}
    assert leisure["objective"] == "cost" and leisure["finish"]["days"] < 30
    seconds = TOKENS / (1.5 * leisure["predicted"]["tokens_per_second"])
    hurry = run(WORDS, JOB, time_limit=30, price="home=0", deadline=f"{seconds / 3600:.9f}h")
    assert "oregon/0-H100" in {node for row in hurry["pipelines"] for node in row}
    assert hurry["finish"]["dollars"] > 0 and hurry["finish"]["days"] <= seconds / 86400


def test_however_little_time_there_is_free_machines_are_found_and_no_spare_is_said_to_be_cheaper() -> None:
    told = run("8xH100@oregon 4x4090@home:200mbit/20mbit", JOB, time_limit=0.05, price="home=0", deadline="30d")
    assert told["finish"]["dollars"] == 0.0
    assert {node.partition("/")[0] for row in told["pipelines"] for node in row} == {"home"}
    paid = run("4xH100@oregon", JOB, time_limit=2, deadline="30d")
    assert paid["spares"], "one is enough"
    for why in paid["spares"].values():
        said = re.findall(r"\$([\d.e-]+)", why)
        assert "no cheaper" in why or said[0] != said[1], why


def test_parts_that_compute_most_for_the_dollar_are_planned_for_first() -> None:
    network = with_prices(cluster_of("2xH100@a 2x4090@b 1xH100@b"), "4090=0.01")
    dollars = [sum(network.devices[one].price or 0.0 for one in part) for part in parts(network)]
    flops = [sum(network.devices[one].tflops for one in part) for part in parts(network)]
    rates = [one / two for one, two in zip(dollars, flops, strict=True)]
    assert rates == sorted(rates) and parts(network)[0] == [2, 3]


def test_parts_of_a_network_are_its_places_and_its_kinds() -> None:
    network = cluster_of("2xH100@a 2x4090@b 1xH100@b")
    found = parts(network)
    assert [0, 1] in found and [2, 3, 4] in found  # places
    assert [2, 3] in found and [0, 1, 4] in found  # kinds
    assert len({tuple(part) for part in found}) == len(found) and all(len(part) < 5 for part in found)
