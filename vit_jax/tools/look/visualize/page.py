"""index.html: all pictures of a model and a set of images on one page that needs nothing else."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vit_jax.core import synsets
from vit_jax.core.errors import UserError, nearest, writing
from vit_jax.core.files import write_file
from vit_jax.core.metric_names import readable, words
from vit_jax.draw import attention_pictures, html_page, weight_pictures
from vit_jax.draw.attention_pictures import Question
from vit_jax.draw.html_page import Findings
from vit_jax.models.head import num_image_classes
from vit_jax.probes import principal
from vit_jax.store import workdir
from vit_jax.tools.look.visualize import features
from vit_jax.tools.look.visualize.photos import Photos, Progress, compute_outputs
from vit_jax.weights import Loaded


class Options(NamedTuple):
    """The values of the command's flags of these names; layers and patches count from 0."""

    max_images: int
    map: str
    of_class: str | None = None
    layers: Sequence[int] | None = None
    query: tuple[int, int] | None = None
    at: str = features.LAST


def sections(
    loaded: Loaded, photos: Photos, options: Options, progress: Progress
) -> list[Findings]:
    """Findings about weights, attention and features; options are checked first."""
    model, names = loaded.model, loaded.class_names
    wanted = None if options.of_class is None else find_class(options.of_class, model, names)
    attention_pictures.check(model, options.layers, options.query)
    principal.check_map(options.map)
    outputs = compute_outputs(model, photos, progress)
    places = photos.evenly_spaced(options.max_images)
    shown = photos.subset(places)
    classes = None
    if outputs.logits is not None:
        predicted = outputs.logits[places].argmax(axis=-1).tolist()
        classes = predicted if wanted is None else [wanted] * len(places)
    captions = _captions(shown, classes, names, predicted=wanted is None)
    question = Question(classes, captions, options.layers, options.query)
    pixels = shown.pixels(shown.stacked)
    groups = photos.groups(lambda label: title(label, names))
    return [
        weight_pictures.findings(model),
        attention_pictures.findings(model, shown.stacked, pixels, question),
        features.findings(
            model,
            shown,
            outputs,
            names=groups or photos.names,
            labels=groups,
            method=options.map,
            at=options.at,
        ),
    ]


def find_class(requested: str, model: Any, names: Sequence[str] | None) -> int:
    """Finds a class of the model by its name, a part of "n01 cock, hen", or else its number."""
    number = num_image_classes(model)
    every = names if names and number else ()
    places = [place for place, name in enumerate(every) if name == requested]
    places = places or [place for place, name in enumerate(every) if requested in _aliases(name)]
    if not places and requested.isdecimal() and int(requested) < number:
        places = [int(requested)]
    if len(places) == 1:
        return places[0]
    cure = nearest(requested, {alias for name in every for alias in _aliases(name)})
    if places or not every:
        cure = "; ".join(f"{place}, {every[place]}" for place in places)
        cure = f"Give a number from 0 to {number - 1:,}. {cure}".rstrip()
    raise UserError(
        "is not one class of this model.", field="--of_class", value=requested, cure=cure
    )


def _aliases(name: str) -> list[str]:
    """Other names of "n01514668 cock, rooster"."""
    words = synsets.without_id(name)
    return [*([name.partition(" ")[0], words] if words != name else []), *words.split(", ")]


def _captions(
    shown: Photos, classes: Sequence[int] | None, names: Sequence[str] | None, *, predicted: bool
) -> list[str]:
    if classes is None:
        return shown.names
    titles = [title(number, names) for number in classes]
    what = "seen as" if predicted else "relevance for"
    return [f"{file}, {what} {title}" for file, title in zip(shown.names, titles, strict=True)]


def title(number: int, names: Sequence[str] | None) -> str:
    """A class as people call it: "cock" for "n01514668 cock"."""
    return synsets.without_id(names[number]) if names else f"class {number}"


FILE = "index.html"
_PICTURE = re.compile(r"<code>([\w.-]+\.(?:png|gif|webp))</code>")


def check_folder(folder: Path) -> None:
    with writing("--output", folder):
        workdir.try_writing(folder)
        _existing_pictures(folder)


def write(folder: Path, title: str, subtitle: str, findings: Sequence[Findings]) -> None:
    """Writes the page and its pictures, and removes pictures of an earlier page."""
    pictures = {
        f"{picture.name}.{picture.ending}": picture.data
        for each in findings
        for picture in each.section.pictures
    }
    numbers = {name: number for each in findings for name, number in each.numbers.items()}
    text = html_page.render(
        "tools/look/visualize/page.html",
        title=title,
        subtitle=f"{subtitle} · {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M %Z}",
        sections=[each.section for each in findings],
        numbers=[(words(name), readable(name, value)) for name, value in numbers.items()],
    )
    with writing("--output", folder):
        folder.mkdir(parents=True, exist_ok=True)
        before = _existing_pictures(folder)
        for name, data in pictures.items():
            write_file(folder / name, data)
        write_file(folder / FILE, text)
        for name in before - set(pictures):
            (folder / name).unlink(missing_ok=True)


def _existing_pictures(folder: Path) -> set[str]:
    file = folder / FILE
    if not file.exists():
        return set()
    text = file.read_text(encoding="utf-8", errors="replace")
    if "vit_jax visualize</title>" not in text:
        raise FileExistsError(f"its {FILE} is not of this command")
    return set(_PICTURE.findall(text))
