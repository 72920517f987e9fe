"""docs/sharding.png shows what the rules table says; drawn anew by --regenerate_goldens."""

import itertools
import json
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, PngImagePlugin

from vit_jax.core import axes
from vit_jax.parallel import mesh as meshes

FILE = Path(__file__).parents[2] / "docs" / "sharding.png"

# A setting: its name, the mesh of 8 devices, and the rules of the optimizer's arrays.
SETTINGS = (
    ("data 8", (1, 8, 1, 1), meshes.RULES),
    ("data 8, shard_optimizer", (1, 8, 1, 1), meshes.SHARDED_OPTIMIZER_RULES),
    ("fsdp 8", (1, 1, 8, 1), meshes.RULES),
    ("data 2 x fsdp 4", (1, 2, 4, 1), meshes.RULES),
    ("data 2 x fsdp 2 x tensor 2", (1, 2, 2, 2), meshes.RULES),
)
# An array: what to call it, its axes, its size on the page, and whether it is the optimizer's.
ARRAYS = (
    ("a batch", (axes.BATCH,), (26, 120), False),
    ("tokens in the MLP", (axes.BATCH, axes.MLP), (150, 120), False),
    ("kernel of the MLP", (axes.WIDTH, axes.MLP), (150, 120), False),
    ("its moments in the optimizer", (axes.WIDTH, axes.MLP), (150, 120), True),
)
SIZE = 64  # of every axis; divides over all the meshes
COLOURS = (
    "#c6dbef", "#fdd0a2", "#c7e9c0", "#dadaeb", "#fee391", "#fcbba1", "#d9d9d9", "#b2e2e2",
)  # fmt: skip

SCALE = 2  # drawn larger and shrunk, so that lines are smooth
LEFT, TOP, GAP, ROW = 130, 40, 34, 150


def blocks(names, rules, sizes):
    """{"first row, first column of the block": the devices that hold it}; of 8 devices 0 to 7."""
    shape = dict(zip(meshes.AXES, sizes, strict=True))
    assert not axes.undivided(names, (SIZE,) * len(names), rules, shape)
    held = {}
    for device, place in enumerate(itertools.product(*map(range, sizes))):
        coordinate = dict(zip(meshes.AXES, place, strict=True))
        corner = []
        for over in (rules[name] for name in names):
            index = 0
            for axis in over:
                index = index * shape[axis] + coordinate[axis]
            corner.append(index * SIZE // axes.num_devices(over, shape))
        held.setdefault(",".join(map(str, corner)), []).append(device)
    return held


def everything():
    """Blocks by setting and array."""
    return {
        setting: {
            array: blocks(names, optimizer_rules if optimizers else meshes.RULES, sizes)
            for array, names, _, optimizers in ARRAYS
        }
        for setting, sizes, optimizer_rules in SETTINGS
    }


def draw(found):
    """A row for each setting, a column for each array; a block says which devices hold it."""
    width = LEFT + sum(size[0] + GAP for _, _, size, _ in ARRAYS)
    image = Image.new("RGB", (width * SCALE, (TOP + ROW * len(SETTINGS)) * SCALE), "white")
    pen = ImageDraw.Draw(image)

    def text(x, y, what, anchor, size=11):
        font = ImageFont.load_default(size * SCALE)
        pen.multiline_text(
            (x * SCALE, y * SCALE), what, fill="black", font=font, anchor=anchor, align="center"
        )

    for row, (setting, arrays) in enumerate(found.items()):
        x, y = LEFT, TOP + ROW * row
        text(8, y + 60, setting.replace(" x ", "\nx ").replace(", ", ",\n"), "lm", 12)
        for array, _, (w, h), _ in ARRAYS:
            if row == 0:
                text(x + w / 2, 18, array, "mm", 12)
            held = arrays[array]
            corners = [tuple(map(int, corner.split(","))) for corner in held]
            down, across = len({c[0] for c in corners}), len({c[1:] for c in corners})
            for corner, devices in zip(corners, held.values(), strict=True):
                bw, bh = w / across, h / down
                x0 = x + w * (corner[1] / SIZE if len(corner) > 1 else 0)
                y0 = y + h * corner[0] / SIZE
                box = [x0 * SCALE, y0 * SCALE, (x0 + bw) * SCALE, (y0 + bh) * SCALE]
                pen.rectangle(box, COLOURS[devices[0]], "#555555", SCALE)
                said = "all" if len(devices) == 8 else " ".join(map(str, devices))
                text(x0 + bw / 2, y0 + bh / 2, said, "mm", 10 if w > 26 or len(said) < 4 else 8)
            x += w + GAP
    return image.resize((image.width // SCALE, image.height // SCALE), Image.Resampling.LANCZOS)


def test_picture_shows_the_rules_table(request):
    found = everything()
    if request.config.getoption("regenerate_goldens"):
        text = PngImagePlugin.PngInfo()
        text.add_text("blocks", json.dumps(found))
        draw(found).quantize(64).save(FILE, optimize=True, pnginfo=text)
    with Image.open(FILE) as image:
        assert json.loads(image.text["blocks"]) == found


def test_blocks_cover_every_array_once():
    for arrays in everything().values():
        for held in arrays.values():
            assert sorted(d for devices in held.values() for d in devices) == list(range(8))
            assert len({len(devices) for devices in held.values()}) == 1
