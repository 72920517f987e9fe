"""A ResNet's parameters in this project: their names and axes.

W is the width of its root. "4W" is an axis four times as long; a prime tells apart two axes that
are equally long. U1, U2 ... are the numbers of units in each stage behind its first.
"""

from __future__ import annotations

MAX_STAGES = 4  # of all that are published, and so of the tables


def of(under: str, *, pre_activation: bool) -> dict[str, str]:
    """Axes by name, of the ResNet whose names start with `under`; of MAX_STAGES stages."""
    found = {f"{under}/root/conv/kernel": "7 7' 3 W"}
    if not pre_activation:
        found |= _norm(f"{under}/root/norm", "W")
    for stage in range(1, MAX_STAGES + 1):
        inputs = "W" if stage == 1 else f"{2**stage}W"
        outputs = f"{2 ** (stage + 1)}W"
        for part, layers, before in (("first", "1", inputs), ("rest", f"U{stage}", outputs)):
            channels = (before, f"{2 ** (stage - 1)}W", outputs)
            unit = _unit(channels, projection=part == "first", pre_activation=pre_activation)
            for name, axes in unit.items():
                found[f"{under}/stage{stage}/{part}/block/{name}"] = f"{layers} {axes}"
    return found


def _unit(
    channels: tuple[str, str, str], *, projection: bool, pre_activation: bool
) -> dict[str, str]:
    """Of a unit with these channels: of its input, inside, of its output."""
    before, hidden, after = channels
    found = {
        "conv1/kernel": f"1 1 {before} {hidden}",
        "conv2/kernel": f"3 3' {hidden} {hidden}'",
        "conv3/kernel": f"1 1 {hidden} {after}",
    }
    if projection:
        found["projection/kernel"] = f"1 1 {before} {after}"
    norms = {"norm1": hidden, "norm2": hidden, "norm3": after}
    if pre_activation:
        norms = {"norm1": before, "norm2": hidden, "norm3": hidden}
    elif projection:
        norms["projection_norm"] = after
    for name, axes in norms.items():
        found |= _norm(name, axes)
    return found


def _norm(name: str, axes: str) -> dict[str, str]:
    return {f"{name}/scale": axes, f"{name}/bias": axes}


def is_standardized(name: str) -> bool:
    """Whether it is a kernel of a ResNet's convolutions, whose scale is taken out."""
    return name.endswith("/kernel") and name.removeprefix("patches/").startswith("resnet/")
