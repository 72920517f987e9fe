"""PNG files that carry the facts they show."""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image, PngImagePlugin

from vit_jax.draw import style


def write(file: Path, figure: Figure, facts: Any) -> None:
    """Writes the picture and its facts, which are of JSON's types."""
    image = Image.fromarray(style.pixels(figure))
    text = PngImagePlugin.PngInfo()
    text.add_text("facts", json.dumps(facts), zip=True)
    image.save(file, optimize=True, pnginfo=text)


def read(file: Path) -> tuple[Image.Image, Any]:
    """Reads the picture and its facts."""
    with Image.open(file) as image:
        image.load()
        return image.convert("RGB"), json.loads(image.text["facts"])
