"""A publisher that tells one member another result than the rest, in real processes: it is named and put out."""

RULES = {"mode": "delta", "every": 2, "codec": "int8", "pattern": "publishers", "block": 256}
LIE = """

import os
if os.environ.get("LIES"):
    from dataclasses import replace
    from farflung.node.rounds.sender import RoundSender
    true = RoundSender.send_result

    def lie(sender, effect):
        victim = min(sender.rounds.plan.members)
        if effect.to == victim and effect.round >= 4 and len(sender.rounds.plan.members) == 4:
            other = replace(effect.result, error=effect.result.error ^ 1)
            effect = replace(effect, result=sender.disputes.receipts.signed(effect.round, other))
        true(sender, effect)

    RoundSender.send_result = lie
"""


def test_a_publisher_of_two_results_is_put_out_and_the_others_train_on(farm):
    run = farm(pace=0.005, ballast=50_000, parallel={"stages": 1, "pipelines": 4}, updates=RULES)
    model = run.folder / "paced.py"
    model.write_text(model.read_text() + LIE)
    run.coordinator()
    nodes = run.nodes("abc")
    nodes["d"] = run.node("d", LIES="1")
    run.wait(lambda: not nodes["d"].alive, "d is put out")
    assert nodes["d"].status == 3 and "what it sent was refused by" in nodes["d"].of("error")[0]["message"]
    run.trains("a", "b", "c")
    assert all(nodes[name].alive for name in "abc")
    assert any("two different results" in one["message"] for one in run.events("warning", node="d"))
