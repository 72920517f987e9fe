"""A picture's file, which keeps the facts that it shows."""

import json
from pathlib import Path
from typing import Any

from PIL import Image, PngImagePlugin


def write(file: Path, image: Image.Image, facts: Any) -> None:
    """Writes the picture with its facts, of JSON's types."""
    text = PngImagePlugin.PngInfo()
    text.add_text("facts", json.dumps(facts), zip=True)
    image.save(file, optimize=True, pnginfo=text)


def read(file: Path) -> tuple[Image.Image, Any]:
    """The picture and its facts."""
    with Image.open(file) as image:
        image.load()
        return image.convert("RGB"), json.loads(image.text["facts"])
