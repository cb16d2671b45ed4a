"""What the coordinator needs to read the data and to write checkpoints stays with it."""

import json
import urllib.parse

from farflung.job.schema import Job

SECRET = "hunter2"


async def test_no_secret_of_an_address_reaches_a_node(cluster, tmp_path, eventually):
    folder = tmp_path / f"KEY:{SECRET}@bucket"
    folder.mkdir()
    named = tmp_path / f"text.txt?sig={SECRET}"
    named.write_text((tmp_path / "text.txt").read_text())
    (folder / "held.txt").write_text((tmp_path / "text.txt").read_text()[:2000])
    job = cluster.job(
        ('text = ["text.txt"]', f'text = ["file://{named}"]'),
        ("validation = 0.1", f'validation = ["file://{folder}/held.txt"]'),
        ("keep = 2", "keep = 2\n"),
    )
    coordinator = cluster.coordinator(job)
    link = await coordinator.link
    nodes = [await cluster.node(link, name) for name in "abcd"]
    await coordinator.event("checkpoint")
    await eventually(lambda: all(node.view is not None for node in nodes))
    for node in nodes:
        said = [str(order) for order in node.orders] + [node.view.job, node.job.model_dump_json()]
        assert not [one for one in said if SECRET in urllib.parse.unquote(one)]
        assert Job.model_validate_json(node.view.job).data.text == [f"file://{tmp_path}/text.txt"]
        assert SECRET not in node.facts.model_dump_json()
    manifest = json.loads(await nodes[0].read("checkpoint/4/manifest.json"))
    assert SECRET not in json.dumps(manifest)
    assert await coordinator.task == 0
