#!/bin/sh
# What only a graphics card can prove, in at most ten minutes: the bytes and the losses of the CPU, the speed of kernels
# and codecs beside a copy, a training run of two nodes beside a plain loop, their memory, and what a killed node costs.
#
#   sh benchmarks/gpu.sh [FOLDER]          on the first card; results in FOLDER/gpu.json, written as they come (default .)
#   sh benchmarks/gpu.sh --tiny [FOLDER]   the same steps with tiny sizes on the CPU, kernels under Triton's interpreter
# --only STEP ... runs some steps (tests islands rows kernels codecs run); the results of the others stay in the file.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
ln -s "$root" "$tree/farflung"
PYTHONPATH="$tree${PYTHONPATH:+:$PYTHONPATH}" "${PYTHON:-python3}" "$root/benchmarks/gpu.py" "$@"
