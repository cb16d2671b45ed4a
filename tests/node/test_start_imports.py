"""What a node loads before it has joined: torch, to measure its device, and nothing that it needs only to train."""

import subprocess
import sys

LATER = [
    *("transformers", "scipy", "numba", "networkx", "sympy", "accelerate"),
    *("pandas", "matplotlib", "pyarrow", "boto3", "huggingface_hub"),
]
SCRIPT = f"""
import sys
import farflung.__main__
from farflung.node import agent, entering, life
from farflung.proto.words.link import NO_FINGERPRINT, Link

def enter(link, measure, **rest):
    measure()
    print(*(name for name in {LATER!r} + ["torch._dynamo", "torch.distributed.tensor"] if name in sys.modules))
    print("torch" in sys.modules)
    raise SystemExit

life.enter = enter
entering.measure_device = lambda device: entering.Device()
link = Link("127.0.0.1", 1, "abcdef", "number.secret", NO_FINGERPRINT)
agent.run(link, device="cpu", cache=agent.Path(sys.argv[1]), insecure=True, emit=print)
"""


def test_a_node_joins_before_it_loads_what_it_trains_with(tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["", "True"]), done.stderr
