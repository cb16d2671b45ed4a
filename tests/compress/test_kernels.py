"""The Triton kernels without a GPU: the CPU's bytes under the interpreter, cubins for sm_80 and sm_90, no fma."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.timeout(900)  # seconds of one core, but cores may be shared
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


P, B, W, N, U, F = "*fp32", "*u8", "*i16", "i64", "u32", "fp32"
I = "*i32"  # noqa: E741
KEY, OWN = [U, U, U], [U, U, "i32"]
GROUP = {"GROUP": 128, "BITS": 4, "STOCHASTIC": True, "BLOCK": 2048}
SPARSE = {"RUN": 64, "BUCKET": 128, "BLOCK": 2048}
BLOCK = {"BLOCK": 4096, "STAGES": 12}
SIGNATURES = {
    "kernels.group_encode": ([P, B, W, I, N, *KEY, "i32"], GROUP),
    "kernels.group_decode": ([B, W, P, N, F], {"GROUP": 128, "BITS": 4, "ADD": True, "BLOCK": 2048}),
    "kernels_checksum.crc_words": ([I, I, I, I, N, "i32", "i32"], {"COLUMNS": 128}),
    "kernels_cocktail.gather_delta": ([P, P, "*i64", P, I, N], {"DELTA": True, "RUN": 64, "BLOCK": 2048}),
    "kernels_cocktail.count_digit": ([P, I, I, N], {"SHIFT": 10, "BLOCK": 2048}),
    "kernels_cocktail.count_kept": ([P, I, I, I, N], {"BLOCK": 2048}),
    "kernels_cocktail.compact": ([P, I, I, I, I, I, P, N], {"BLOCK": 2048}),
    "kernels_cocktail.quantize_kept": ([P, I, "*i64", P, B, W, I, N], {"UPDATE": True, **SPARSE}),
    "kernels_cocktail.sparse_add": ([P, "*i64", "*i64", B, W, N, F], SPARSE),
    "kernels_rotation.rotate": ([P, P, *KEY, U, N], {**BLOCK, "BEFORE": True, "AFTER": False}),
    "kernels_rotation.hadamard_rows": ([P, P, N], {"ROWS": 128, "STAGES": 7, "COLUMNS": 32}),
    "kernels_rotation.eden_encode": ([P, B, B, P, I, P, P, *KEY, N], {**BLOCK, "BITS": 2, "BIASED": True}),
    "kernels_rotation.eden_decode": ([B, B, P, P, P, F, *KEY, N], {**BLOCK, "BITS": 3, "ADD": True}),
    "kernels_rotation.thc_encode": ([P, B, P, I, *KEY, *OWN, N, F], {**BLOCK, "BITS": 4, "GRID": 30}),
    "kernels_rotation.thc_round": ([P, B, I, *OWN[:2], U, "i32", N, F], {"BITS": 4, "GRID": 30, "BLOCK": 2048}),
}

# Functions that kernels call.
PARTS = {
    "butterfly", "hadamard_in_program", "levels_of", "load_codes", "load_levels", "load_plane", "load_upto",
    "magnitude", "positions", "signs", "step_code", "step_value", "store_codes", "store_group", "store_plane",
    "store_upto", "thc_code", "uniform", "unpack4", "words_of",
}  # fmt: skip


FUSIBLE = re.compile(r"\bfma\.|\b(add|sub|mul)(\.ftz)?\.f(32|64)\b")
# What decodes and applies, and has no division, whose own machine code has fused sums.
APPLY = (
    "kernels.group_decode",
    "kernels_cocktail.sparse_add",
    "kernels_rotation.eden_decode",
    "kernels_rotation.rotate",
)


def machine_code(cubin: bytes) -> str:
    """The disassembly of a cubin, by the disassembler that comes with Triton."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, file.name], capture_output=True, text=True, check=True).stdout


def compile_kernel(name: str, fusion: bool = False) -> None:
    """Cubins of one kernel for sm_80 and sm_90; asserts that no product and sum of it can become one rounding."""
    import importlib

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types, constants = SIGNATURES[name]
    module, function = name.split(".")
    kernel = getattr(importlib.import_module("farflung.compress.gpu." + module), function)
    names = kernel.arg_names
    for parameter, kind in zip(kernel.params, types, strict=False):  # one variant for all seeds, counts and weights
        assert kind[0] == "*" or (parameter.do_not_specialize and parameter.annotation_type == kind), parameter.name
    signature = dict(zip(names, types, strict=False)) | dict.fromkeys(constants, "constexpr")
    for arch in (80, 90):
        source = ASTSource(kernel, signature, {(names.index(k),): v for k, v in constants.items()})
        built = triton.compile(source, GPUTarget("cuda", arch, 32), {"enable_fp_fusion": fusion, "num_warps": 8})
        assert built.asm["cubin"][:4] == b"\x7fELF"
        # ptxas may fuse a product and a sum that are not marked .rn, and then no fma is seen before the machine code.
        fused = [line for line in built.asm["ptx"].splitlines() if FUSIBLE.search(line)]
        assert not fused, f"{name} sm_{arch}: {fused[:3]}"
        if name in APPLY:
            assert "FFMA" not in machine_code(built.asm["cubin"]), f"{name} sm_{arch}: FFMA in its machine code"
        print(f"{name}: a cubin for sm_{arch} of {len(built.asm['cubin'])} bytes, no fma", flush=True)


def compile_all() -> None:
    """Every kernel of the package has a signature here, and compiles."""
    import importlib

    from triton.runtime import JITFunction

    modules = {name.partition(".")[0] for name in SIGNATURES}
    found = [importlib.import_module("farflung.compress.gpu." + module) for module in modules]
    parts = PARTS | {name.partition(".")[2] for name in SIGNATURES}
    missing = {
        name for module in found for name, value in vars(module).items() if isinstance(value, JITFunction)
    } - parts
    assert not missing, f"neither compiled here nor a part of another: {missing}"
    for name in SIGNATURES:
        compile_kernel(name)


def test_cubins_and_no_fused_sums(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    program = f"import sys; sys.path.insert(0, {str(HERE)!r}); import test_kernels; test_kernels.compile_all()"
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.count("no fma") == 2 * len(SIGNATURES)


def test_the_check_for_fused_sums_finds_one(tmp_path: Path) -> None:
    """With fusion on, the same kernel is refused: the check above is one that can fail."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    program = (
        f"import sys; sys.path.insert(0, {str(HERE)!r}); import test_kernels; "
        "test_kernels.compile_kernel('kernels.group_decode', fusion=True)"
    )
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode != 0 and "AssertionError: kernels.group_decode sm_80: [" in run.stderr
