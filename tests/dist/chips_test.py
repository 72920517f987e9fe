import pytest

from vit_jax.dist.chips import peak_flops


@pytest.mark.parametrize(
    ("kind", "tflops"),
    [
        ("TPU v5 lite", 197),
        ("TPU v5p", 459),
        ("TPU v6 lite", 918),
        ("NVIDIA H200", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA A100-SXM4-80GB", 312),
    ],
)
def test_the_longest_name_that_fits(kind, tflops):
    assert peak_flops(kind) == tflops * 1e12


def test_what_no_data_sheet_tells():
    assert peak_flops("cpu") is None
