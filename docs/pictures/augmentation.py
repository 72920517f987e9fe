"""The effects of augmentation on a scene: the distortions by level, and ops by seed."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vit_jax.data.host_tf import tf
from vit_jax.data.ops import autoaugment
from vit_jax.data.ops import table as ops
from vit_jax.data.reader import Encoded, encoded
from vit_jax.data.source import Example

FOLDER = Path(__file__).parents[1] / "augmentation"
SCENE = FOLDER / "scene.png"
SIDE_PX, SHRINK = 224, 3
CELL_PX = -(-SIDE_PX // SHRINK)
GAP_PX, LABEL_PX, HEAD_PX = 3, 118, 18

LEVELS = (5, 10, 15, 20, 30)
SEEDS = (0, 1, 2, 3, 4)
OPS = (
    "randaugment(2, 10)", "randaugment(2, 20)", "autoaugment('v0')", "autoaugment('cifar10')",
    "color_jitter(0.4, 0.4, 0.4, 0.1)", "gaussian_blur(1.0)", "three_augment",
    "random_erasing(1.0)",
)  # fmt: skip

Images = Sequence[np.ndarray]


def distorted(scene: np.ndarray) -> dict[str, Images]:
    """RandAugment's sixteen distortions at LEVELS, positive and about the centre."""
    chance = tf.constant([0.75, 0.5, 0.5])

    def at(name: str, level: int) -> np.ndarray:
        distortion = autoaugment.DISTORTIONS[name]
        argument = tf.constant(distortion.argument(level))
        return distortion.apply(tf.constant(scene), argument, chance).numpy()

    return {name: [at(name, level) for level in LEVELS] for name in autoaugment.CHOICES}


def augmented(scene: np.ndarray) -> dict[str, Images]:
    """The results of OPS with SEEDS, as a config has them."""
    image = encoded(Example(SCENE.read_bytes(), (0,)), scene.size)
    assert isinstance(image, Encoded)

    def drawn(op: str, seed: int) -> np.ndarray:
        preprocess = ops.parse(f"decode|{op}")
        seeds = tf.constant([seed, 0], tf.int64)
        return preprocess(image, seeds, max_image_pixels=scene.size).numpy()

    return {op: [drawn(op, seed) for seed in SEEDS] for op in OPS}


Drawn = tuple[Callable[[np.ndarray], dict[str, Images]], Sequence[str]]
# For each file: the function that makes its images, and the heads of its columns.
PICTURES: dict[str, Drawn] = {
    "distortions": (distorted, [f"level {level}" for level in LEVELS]),
    "ops": (augmented, [f"seed {seed}" for seed in SEEDS]),
}


def draw_scene() -> Image.Image:
    """Draws a house, a tree and the sun over a meadow: edges, smooth colours, fine texture."""
    scale = 4  # drawn larger and shrunk for smooth edges
    side = SIDE_PX * scale
    down = np.linspace(0, 1, side)[:, None, None]
    sky, haze = np.array([70, 130, 210]), np.array([225, 230, 235])
    image = Image.fromarray((sky + (haze - sky) * down).repeat(side, 1).astype(np.uint8))
    pen = ImageDraw.Draw(image)

    def scaled(*points: int) -> list[int]:
        return [scale * x for x in points]

    pen.ellipse(scaled(162, 22, 198, 58), "#ffe27a")
    pen.ellipse(scaled(-60, 118, 170, 290), "#6f9a58")
    pen.ellipse(scaled(70, 132, 330, 330), "#86ad5f")
    pen.rectangle(scaled(38, 108, 112, 170), "#c9583f")
    pen.polygon(scaled(28, 110, 75, 68, 122, 110), "#5b3a35")
    for x in (48, 86):
        pen.rectangle(scaled(x, 120, x + 16, 138), "#f4ecc8", "#40302c", scale)
    pen.rectangle(scaled(67, 142, 83, 170), "#40302c")
    pen.rectangle(scaled(162, 118, 172, 176), "#6b4a2f")
    pen.ellipse(scaled(138, 70, 196, 132), "#2f6b3c")
    for y in range(180, SIDE_PX, 9):
        pen.line(scaled(0, y, SIDE_PX, y - 14), "#5f8547", scale)
    small = np.asarray(image.resize((SIDE_PX, SIDE_PX), Image.Resampling.BOX)).astype(int)
    grain = np.random.default_rng(0).integers(-6, 7, (SIDE_PX, SIDE_PX, 1))
    return Image.fromarray(np.clip(small + grain, 0, 255).astype(np.uint8))


def cells(num_rows: int) -> list[list[tuple[int, int]]]:
    """Corner (left, top) of each cell by row; the rows fill two columns."""
    step = CELL_PX + GAP_PX
    rows = -(-num_rows // 2)
    starts = [
        (i // rows * (LABEL_PX + 5 * step), HEAD_PX + i % rows * step) for i in range(num_rows)
    ]
    return [[(left + LABEL_PX + j * step, top) for j in range(5)] for left, top in starts]


def draw(images: dict[str, Images], heads: Sequence[str]) -> Image.Image:
    """Draws a row for each name, with each image shrunk."""
    places = cells(len(images))
    right, bottom = (max(p[i] for row in places for p in row) + CELL_PX for i in range(2))
    picture = Image.new("RGB", (right + GAP_PX, bottom + GAP_PX), "white")
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(11)
    for (name, row), corners in zip(images.items(), places, strict=True):
        text = name.replace("(", "\n(", 1)
        pen.multiline_text((corners[0][0] - 6, corners[0][1] + 28), text, "black", font, "ra")
        for head, cell, image in zip(heads, corners, row, strict=True):
            picture.paste(Image.fromarray(image).reduce(SHRINK), cell)
            if cell[1] == HEAD_PX:
                pen.text((cell[0] + CELL_PX // 2, 3), head, "#666666", font, "ma")
    return picture


def write() -> None:
    """Draws the scene and both pictures of it."""
    FOLDER.mkdir(exist_ok=True)
    draw_scene().save(SCENE, optimize=True)
    for name, (images, heads) in PICTURES.items():
        file = FOLDER / f"{name}.png"
        draw(images(np.asarray(Image.open(SCENE))), heads).save(file, optimize=True)
        print(file)
