"""A member whose contributions do harm, within every limit, is found by what they do to the loss, and put out."""

import json

from farflung.coordinator.observe.status import read_status

JUDGED = {"mode": "delta", "every": 2, "codec": "int8", "pattern": "all_to_all", "judge": 1.0}
LIE = """

import os
if os.environ.get("LIES"):
    from farflung.node.rounds.arithmetic.exchange import Exchange
    true = Exchange.contributions

    def lie(exchange, round):
        if not exchange.terms.follows:
            section = exchange.section
            section.x.copy_(2 * section.g - section.x)
        return true(exchange, round)

    Exchange.contributions = lie
"""


def test_a_member_that_flips_signs_is_put_out_and_the_others_stay(farm):
    run = farm(pace=0.005, parallel={"stages": 1, "pipelines": 5}, updates=JUDGED)
    model = run.folder / "paced.py"
    model.write_text(model.read_text() + LIE)
    run.coordinator()
    nodes = run.nodes("abcd")
    nodes["e"] = run.node("e", LIES="1")
    run.trains("a", "b", "c", "d", "e")
    run.wait(lambda: not nodes["e"].alive, "e is put out")
    assert nodes["e"].status == 3 and "find what it sends of no use" in nodes["e"].of("error")[0]["message"]
    run.trains("a", "b", "c", "d", steps=40)
    assert all(nodes[name].alive for name in "abcd")
    run.wait(lambda: {one["node"] for one in read_status(run.state)["ledger"]} == set("abcde"), "the ledger is stored")
    ledger = {one["node"]: one for one in read_status(run.state)["ledger"]}
    assert ledger["e"]["score"] < 0 and ledger["e"]["useful_samples"] == 0
    assert all(ledger[name]["score"] > ledger["e"]["score"] + 0.5 and ledger[name]["samples"] > 0 for name in "abcd")
    run.wait((run.state / "ledger.jsonl").exists, "the ledger's file is there")
    lines = [json.loads(line) for line in (run.state / "ledger.jsonl").read_text().splitlines()]
    assert [line["node"] for line in lines] == list("abcde")
