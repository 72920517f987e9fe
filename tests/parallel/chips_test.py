import re
import types

import pytest

from vit_jax.parallel.chips import PEAK_BF16_TFLOPS, compiler_options, peak_flops

# Names as in jax: TPUs from libtpu, GPUs from the driver (cuDeviceGetName).
KINDS = {
    "TPU v3": 61.5, "TPU v4": 275, "TPU v5 lite": 197, "TPU v5": 459, "TPU v5p": 459,
    "TPU v6 lite": 918, "NVIDIA GB200": 2500, "NVIDIA B200": 2250, "NVIDIA GH200 480GB": 989,
    "NVIDIA H200": 989, "NVIDIA H200 NVL": 835, "NVIDIA H100 80GB HBM3": 989,
    "NVIDIA H100 NVL": 835, "NVIDIA H100 PCIe": 756, "A100-SXM4-40GB": 312,
    "NVIDIA A100-SXM4-80GB": 312, "NVIDIA A100-PCIE-40GB": 312, "NVIDIA A100 80GB PCIe": 312,
    "NVIDIA A40": 149.7, "NVIDIA A30": 165, "NVIDIA A10": 125, "NVIDIA A10G": 70,
    "NVIDIA L40S": 362.05, "NVIDIA L40": 181.05, "NVIDIA L4": 121, "Tesla V100-SXM2-16GB": 125,
    "Tesla V100-PCIE-16GB": 112, "Tesla V100S-PCIE-32GB": 130, "Tesla T4": 65,
}  # fmt: skip
# Names that only begin like a known one have no rate, rather than another's.
UNKNOWN = [
    "cpu", "TPU v4 lite", "TPU7x", "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H100 NVL MIG 1g.12gb", "NVIDIA H20",
    "NVIDIA H800", "NVIDIA GB300", "NVIDIA A100X", "NVIDIA A1000", "NVIDIA A10M",
    "NVIDIA L4 Something", "NVIDIA L20", "Tesla T40", "NVIDIA T400", "NVIDIA T4G",
    "NVIDIA GeForce RTX 4090", "NVIDIA RTX A6000", "NVIDIA RTX 6000 Ada Generation", "",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_rates_are_those_of_the_data_sheets(kind):
    assert peak_flops(kind) == KINDS[kind] * 1e12
    assert sum(bool(re.fullmatch(pattern, kind)) for pattern in PEAK_BF16_TFLOPS) == 1


@pytest.mark.parametrize("kind", UNKNOWN)
def test_unknown_chips_have_no_rate(kind):
    assert peak_flops(kind) is None


def device(kind):
    return types.SimpleNamespace(device_kind=kind)


def test_the_users_flags_come_before_the_compilers_options(monkeypatch):
    monkeypatch.delenv("LIBTPU_INIT_ARGS", raising=False)
    flag = "xla_tpu_scoped_vmem_limit_kib"
    other = {
        "xla_tpu_enable_advanced_while_initializer_removal": "true",
        "xla_while_loop_all_reduce_dus_code_motion_max_size_bytes": "1073741824",
        "xla_tpu_prefer_async_allgather_to_allreduce": "true",
    }
    assert compiler_options(device("TPU v5 lite")) == {flag: "32768"} | other
    assert compiler_options(device("TPU v4")) is None
    assert compiler_options(device("cpu")) is None
    monkeypatch.setenv("LIBTPU_INIT_ARGS", f"--{flag}=16384")
    assert compiler_options(device("TPU v5 lite")) == other


@pytest.mark.parametrize("kind", ["NVIDIA H200", "A100-SXM4-40GB", "Tesla V100-SXM2-16GB"])
def test_products_are_by_cublas_unless_the_user_says_otherwise(kind, monkeypatch):
    assert compiler_options(device(kind)) == {"xla_gpu_enable_triton_gemm": False}
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=true")
    assert compiler_options(device(kind)) is None
