"""Regenerate the gRPC code from the .proto files: ``make proto``.

Generated with the oldest supported tools, so that it imports under every newer protobuf. protoc's virtual
path makes ``farflung.proto`` imports; they are then rewritten as relative ones, the rule inside the package.
"""

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = sorted(path.name for path in HERE.glob("*.proto"))


def main() -> None:
    """Write ``*_pb2.py``, ``*_pb2.pyi``, ``*_pb2_grpc.py`` and ``*_pb2_grpc.pyi`` beside the .proto files."""
    out = HERE.parent / "build" / "proto"
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-Ifarflung/proto={HERE}"]
    command += [f"--{kind}={out}" for kind in ("python_out", "pyi_out", "grpc_python_out", "mypy_grpc_out")]
    command += [f"farflung/proto/{name}" for name in SOURCES]
    plugin = Path(sys.executable).parent
    subprocess.run(command, check=True, env={"PATH": f"{plugin}:/usr/bin:/bin"})
    for made in sorted((out / "farflung" / "proto").iterdir()):
        text = made.read_text()
        text = re.sub(r"^from farflung\.proto import", "from . import", text, flags=re.MULTILINE)
        text = re.sub(r"^import farflung\.proto\.(\w+)$", r"from . import \1", text, flags=re.MULTILINE)
        text = re.sub(r"farflung\.proto\.(\w+_pb2)\.", r"\1.", text)
        if "_grpc" in made.name and "def add_" not in text:
            continue  # that file defines messages only
        (HERE / made.name).write_text(text)


if __name__ == "__main__":
    main()
