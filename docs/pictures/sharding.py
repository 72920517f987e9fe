"""Blocks of arrays and the devices that hold them, under several meshes."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from vit_jax.core import axes
from vit_jax.draw import style
from vit_jax.parallel import mesh as meshes

FILE = Path(__file__).parents[2] / "docs" / "sharding.png"

# A setting: its name, the mesh of 8 devices, and the rules for the state.
SETTINGS = (
    ("data 8", (1, 8, 1, 1), meshes.RULES),
    ("data 8, shard_optimizer", (1, 8, 1, 1), meshes.SHARDED_STATE_RULES),
    ("fsdp 8", (1, 1, 8, 1), meshes.RULES),
    ("data 2 x fsdp 4", (1, 2, 4, 1), meshes.RULES),
    ("data 2 x fsdp 2 x tensor 2", (1, 2, 2, 2), meshes.RULES),
)
# An array: its name, its axes, its size on the page, and whether it is the optimizer's.
ARRAYS = (
    ("a batch", (axes.BATCH,), (26, 120), False),
    ("tokens in the MLP", (axes.BATCH, axes.MLP), (150, 120), False),
    ("kernel of the MLP", (axes.WIDTH, axes.MLP), (150, 120), False),
    ("its moments in the optimizer", (axes.WIDTH, axes.MLP), (150, 120), True),
)
SIZE = 64  # length of every axis; divisible on all the meshes
COLOURS = (
    "#c6dbef", "#fdd0a2", "#c7e9c0", "#dadaeb", "#fee391", "#fcbba1", "#d9d9d9", "#b2e2e2",
)  # fmt: skip

LEFT, TOP, GAP, ROW = 130, 40, 34, 150


Blocks = dict[str, list[int]]  # "first row,first column" of each block: the devices that hold it


def blocks(names: Sequence[str], rules: axes.Rules, sizes: Sequence[int]) -> Blocks:
    """Blocks of an array with these logical axes, on a mesh of 8 devices."""
    shape = dict(zip(meshes.AXES, sizes, strict=True))
    assert not axes.unsharded(names, (SIZE,) * len(names), rules, shape)
    held: Blocks = {}
    for device, place in enumerate(itertools.product(*map(range, sizes))):
        coordinate = dict(zip(meshes.AXES, place, strict=True))
        corner = []
        for over in axes.sharded_over(names, (SIZE,) * len(names), rules, shape):
            index = 0
            for axis in over:
                index = index * shape[axis] + coordinate[axis]
            corner.append(index * SIZE // axes.num_devices(over, shape))
        held.setdefault(",".join(map(str, corner)), []).append(device)
    return held


def facts() -> dict[str, dict[str, Blocks]]:
    """Blocks by setting and array."""
    return {
        setting: {
            array: blocks(names, optimizer_rules if optimizers else meshes.RULES, sizes)
            for array, names, _, optimizers in ARRAYS
        }
        for setting, sizes, optimizer_rules in SETTINGS
    }


@style.styled
def draw(facts: dict[str, dict[str, Blocks]]) -> Figure:
    """Draws a row per setting and a column per array; a block names the devices that hold it."""
    width = LEFT + sum(size[0] + GAP for _, _, size, _ in ARRAYS)
    height = TOP + ROW * len(SETTINGS)
    figure = style.blank(width / 100, height / 100, layout=None)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    for row, (setting, arrays) in enumerate(facts.items()):
        x, y = LEFT, TOP + ROW * row
        name = setting.replace(" x ", "\nx ").replace(", ", ",\n")
        axes.text(8, y + 60, name, va="center")
        for array, _, size, _ in ARRAYS:
            if row == 0:
                axes.text(x + size[0] / 2, 18, array, ha="center", va="center")
            _draw_array(axes, arrays[array], (x, y), size)
            x += size[0] + GAP
    return figure


def _draw_array(axes: Axes, held: Blocks, corner: tuple[int, int], size: tuple[int, int]) -> None:
    firsts = [tuple(map(int, first.split(","))) for first in held]
    height = size[1] / len({first[0] for first in firsts})
    width = size[0] / len({first[1:] for first in firsts})
    for first, devices in zip(firsts, held.values(), strict=True):
        x = corner[0] + size[0] * (first[1] / SIZE if len(first) > 1 else 0)
        y = corner[1] + size[1] * first[0] / SIZE
        colour = COLOURS[devices[0]]
        axes.add_patch(Rectangle((x, y), width, height, fc=colour, ec="#555555", lw=0.7))
        text = "all" if len(devices) == 8 else " ".join(map(str, devices))
        font_size = style.SMALL if size[0] > 26 or len(text) < 4 else 6
        middle = (x + width / 2, y + height / 2)
        axes.text(*middle, text, size=font_size, ha="center", va="center")
