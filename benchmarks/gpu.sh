#!/bin/sh
# Everything about the kernels that needs a GPU: the CPU's bytes first, then their speed. Writes gpu.json to $1 (default .).
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
ln -s "$root" "$tree/farflung"
PYTHONPATH="$tree" python3 "$root/benchmarks/gpu.py" --json "${1:-.}/gpu.json"
