"""The Triton kernels without a GPU: the CPU's bytes under the interpreter, cubins for sm_80 and sm_90, no fma."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
HERE = Path(__file__).parent


def test_the_kernels_give_the_bytes_of_the_cpu() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "FARFLUNG_FAST": "0", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, str(HERE / "kernel_cases.py"), "cpu"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.gpu
def test_the_kernels_give_the_bytes_of_the_cpu_on_a_gpu() -> None:
    run = subprocess.run(
        [sys.executable, str(HERE / "kernel_cases.py"), "cuda"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


P, B, W, N = "*fp32", "*u8", "*i16", "i64"
GROUP = {"GROUP": 128, "BITS": 4, "STOCHASTIC": True, "BLOCK": 2048}
I = "*i32"  # noqa: E741
SPARSE = {"RUN": 64, "BUCKET": 128, "BLOCK": 2048}
BLOCK = {"BLOCK": 4096, "STAGES": 12}
SIGNATURES = {
    "kernels.group_encode": ([P, B, W, N, N, "i32"], GROUP),
    "kernels.group_decode": ([B, W, P, N, "fp32"], {"GROUP": 128, "BITS": 4, "ADD": True, "BLOCK": 2048}),
    "kernels.group_hop": ([B, W, P, B, W, N, N, "i32"], {**GROUP, "STOCHASTIC": False, "BITS": 8}),
    "kernels.sign_accumulate": ([P, P, P, P, N], {"BLOCK": 2048}),
    "kernels.sign_encode": ([P, P, B, P, N], {"BLOCK": 2048}),
    "kernels_cocktail.gather_delta": ([P, P, "*i64", P, I, N], {"DELTA": True, "RUN": 64, "BLOCK": 2048}),
    "kernels_cocktail.count_digit": ([P, I, I, N], {"SHIFT": 10, "BLOCK": 2048}),
    "kernels_cocktail.count_kept": ([P, I, I, I, N], {"BLOCK": 2048}),
    "kernels_cocktail.compact": ([P, I, I, I, I, I, P, N], {"BLOCK": 2048}),
    "kernels_cocktail.quantize_kept": ([P, I, "*i64", P, B, W, N], {"UPDATE": True, **SPARSE}),
    "kernels_cocktail.sparse_add": ([P, "*i64", I, B, W, N, "fp32"], SPARSE),
    "kernels_rotation.rotate": ([P, P, N, "i32"], {**BLOCK, "INVERSE": False}),
    "kernels_rotation.hadamard_rows": ([P, P, N], {"ROWS": 128, "STAGES": 7, "COLUMNS": 32}),
    "kernels_rotation.eden_encode": ([P, B, P, P, P, N, "i32"], {**BLOCK, "BITS": 4}),
    "kernels_rotation.eden_decode": ([B, P, P, P, "fp32", N, "i32"], {**BLOCK, "BITS": 4, "ADD": True}),
    "kernels_rotation.thc_encode": ([P, B, P, "*i32", N, N, "i32", "fp32"], {**BLOCK, "GRID": 30}),
}


def compile_kernel(name: str) -> None:
    """Cubins of one kernel for sm_80 and sm_90; asserts that its PTX has no fused multiply-add."""
    import importlib

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types, constants = SIGNATURES[name]
    module, function = name.split(".")
    kernel = getattr(importlib.import_module("farflung.compress." + module), function)
    names = kernel.arg_names
    signature = dict(zip(names, types, strict=False)) | dict.fromkeys(constants, "constexpr")
    for arch in (80, 90):
        source = ASTSource(kernel, signature, {(names.index(k),): v for k, v in constants.items()})
        built = triton.compile(source, GPUTarget("cuda", arch, 32), {"enable_fp_fusion": False, "num_warps": 8})
        assert built.asm["cubin"][:4] == b"\x7fELF"
        fused = [line.strip() for line in built.asm["ptx"].splitlines() if re.search(r"\bfma\.", line)]
        assert not fused, f"{name} sm_{arch}: {fused[:3]}"
        print(f"{name}: a cubin for sm_{arch} of {len(built.asm['cubin'])} bytes, no fma", flush=True)


# Small ones in the quick suite; the rotations unroll a dozen stages, which takes a minute to compile.
QUICK = ["kernels.group_decode", "kernels_cocktail.sparse_add"]
ALL = [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in SIGNATURES]


@pytest.mark.parametrize("name", ALL)
def test_cubins_and_no_fused_sums(name: str, tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    program = (
        f"import sys; sys.path.insert(0, {str(HERE)!r}); import test_kernels; test_kernels.compile_kernel({name!r})"
    )
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
