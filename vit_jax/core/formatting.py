"""Formatting of numbers for people."""


def format_bytes(nbytes: float) -> str:
    """1_500_000_000 -> "1.4 GiB"; three digits, in binary units."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(nbytes) >= size:
            return f"{float(f'{nbytes / size:.3g}'):,g} {unit}"
    return f"{nbytes:.0f} B"


def format_count(number: float) -> str:
    """86567656 -> "86.6 M"; for parameters and FLOPs."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"


def format_duration(secs: float) -> str:
    """75 -> "1:15", 7500 -> "2:05:00", 200000 -> "2d 7:33:20"."""
    if not secs < 1e9:  # also NaN
        return "-"
    days, rest = divmod(round(secs), 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    clock = f"{hours}:{minutes:02}:{seconds:02}" if days or hours else f"{minutes}:{seconds:02}"
    return f"{days}d {clock}" if days else clock
