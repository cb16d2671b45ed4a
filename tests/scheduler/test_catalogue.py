"""Clusters in words: what they mean, and what is said of words that mean nothing."""

import pytest

from farflung.cli.planning.plan import run
from farflung.scheduler import PlanError
from farflung.scheduler.networks.catalogue import CARDS, REACHED, cluster_of, in_words


def test_words_are_a_network_whose_places_share_their_lines() -> None:
    network = cluster_of("2xH100@oregon 3x4090@home:200mbit/20mbit l4@oregon")
    names = "oregon/0-H100 oregon/1-H100 home/0-4090 home/1-4090 home/2-4090 oregon/2-l4"
    assert list(network.names) == names.split()
    assert network.site_upload == {"home": 20e6} and network.site_download == {"home": 200e6}
    assert network.link("home/0-4090", "oregon/0-H100").bandwidth == 20e6
    assert network.link("oregon/0-H100", "home/0-4090").bandwidth == 200e6
    assert network.link("home/0-4090", "home/1-4090").bandwidth == 10e9
    card = CARDS["4090"]
    device = network.devices[2]
    assert (device.tflops, device.memory_bytes, device.price) == (card.peak * REACHED, 24e9, card.price)


def test_a_file_is_no_word() -> None:
    assert in_words("8xH100@oregon") and not in_words("cluster.json") and not in_words("")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("4x4080@home", "no card is called '4080'; did you mean"),
        ("4x4090@home:fast", "'fast' is not a rate, like 200mbit"),
        ("4x4090@home:1mbit/2mbit/3mbit", "a line is DOWN/UP"),
        ("0xH100@a", "a count is from 1 to 10000"),
        ("H100", "is not COUNTxCARD@PLACE"),
    ],
)
def test_words_that_mean_nothing(words: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        cluster_of(words)


def test_the_command_says_tokens_a_day_and_dollars() -> None:
    made = run("4xH100@oregon 2x4090@home:200mbit/20mbit", time_limit=60)
    assert made["tokens_per_day"] == pytest.approx(86400 * made["predicted"]["tokens_per_second"], rel=1e-3)
    assert made["dollars_per_billion_tokens"] > 0
    cheap = run("4xH100@oregon 2x4090@home:200mbit/20mbit", time_limit=60, speed=1000.0)
    assert cheap["objective"] == "cost" and cheap["predicted"]["tokens_per_second"] >= 1000
    assert cheap["dollars_per_billion_tokens"] <= made["dollars_per_billion_tokens"]
