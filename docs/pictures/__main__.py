"""Redraws pictures of the documentation: python -m docs.pictures [FILE...]; default: all."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path

from docs.pictures import (
    how_it_works,
    killed_run,
    png,
    recipe_card,
    schedules,
    sharding,
    study,
    sweep,
)

AUGMENTATION = Path(__file__).parents[1] / "augmentation"
PICTURES = {
    "recipe_card": recipe_card,
    "schedules": schedules,
    "sharding": sharding,
    "sweep": sweep,
}


def with_facts(name: str) -> None:
    """Draws one of PICTURES."""
    picture = PICTURES[name]
    facts = picture.facts()
    png.write(picture.FILE, picture.draw(facts), facts)


def of_augmentation() -> None:
    """Draws all of these, which takes TensorFlow."""
    from docs.pictures import augmentation

    augmentation.write()


def of_study(file: Path) -> None:
    """Draws one of its pictures."""
    file.write_bytes(study.draw(file))


WRITERS: dict[Path, Callable[[], None]] = {
    **{each.FILE: functools.partial(with_facts, name) for name, each in PICTURES.items()},
    **{file: functools.partial(of_study, file) for file in study.PICTURES},
    how_it_works.FILE: how_it_works.write,
    killed_run.FILE: killed_run.write,
    **{AUGMENTATION / f"{name}.png": of_augmentation for name in ("ops", "distortions")},
}


def main(files: list[str]) -> None:
    """Draws the named files."""
    wanted = [Path(file).absolute() for file in files] or [*WRITERS]
    for file in wanted:
        if file not in WRITERS:
            names = ", ".join(str(each) for each in WRITERS)
            sys.exit(f"{file} is none of the pictures: {names}")
    for write in dict.fromkeys(WRITERS[file] for file in wanted):
        write()
    for file in wanted:
        print(file)


if __name__ == "__main__":
    main(sys.argv[1:])
