import pytest

from vit_jax.core.formatting import format_bytes, format_count, format_duration


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (2 * 2**10, "2 KiB"),
        (1e9, "954 MiB"),
        (1_020 * 2**20, "1,020 MiB"),
        (1.54 * 2**30, "1.54 GiB"),
        (-3 * 2**30, "-3 GiB"),
        (4096 * 2**40, "4,100 TiB"),
    ],
)
def test_bytes(nbytes, text):
    assert format_bytes(nbytes) == text


@pytest.mark.parametrize(
    ("number", "text"), [(512, "512"), (202_570, "203 k"), (86_567_656, "86.6 M"), (1e12, "1 T")]
)
def test_counts(number, text):
    assert format_count(number) == text


@pytest.mark.parametrize(
    ("secs", "text"),
    [(5, "0:05"), (75.4, "1:15"), (7500, "2:05:00"), (200_000, "2d 7:33:20"), (float("nan"), "-")],
)
def test_durations(secs, text):
    assert format_duration(secs) == text
