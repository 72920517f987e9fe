"""Plots the metrics of runs on one page: vit-jax report runs/a runs/b --output report.html

Curves, final numbers and differences of the configs of one or many work directories, in one HTML
file that needs no network and no other file. The runs may still be in progress.
"""

import datetime
import os
from collections.abc import Sequence

from absl import flags
from etils import epath

from vit_jax.core import command
from vit_jax.core.errors import UserError
from vit_jax.core.files import is_remote
from vit_jax.store import runs, workdir
from vit_jax.tools.look.report import page

NAME = "report.html"


def report(folders: Sequence[epath.Path], output: epath.Path) -> None:
    read = runs.read_all(folders)
    text = page.page(read, datetime.datetime.now(datetime.UTC))
    workdir.write_output(output, text)
    empty = [run.name for run in read if not run.series]
    if empty:
        print(f"note     nothing logged yet by {', '.join(empty)}")
    print(f"saved    {output}")


def distinct(paths: Sequence[str]) -> list[epath.Path]:
    """The folders, each once, without a report that a pattern such as runs/* matches."""
    by_place: dict[str, epath.Path] = {}
    for path in paths:
        folder = epath.Path(path).expanduser()
        if folder.name != NAME:  # the same for all paths to a folder, through links too:
            place = str(folder) if is_remote(folder) else os.path.realpath(folder)
            by_place.setdefault(place, folder)
    return list(by_place.values())


FLAGS = flags.FLAGS


def main(arguments: list[str]) -> None:
    folders = distinct(arguments)
    if not folders:
        raise UserError("Which runs? Give their work directories: runs/a runs/b, or runs/*/.")
    folder = folders[0] if len(folders) == 1 else folders[0].parent
    report(folders, workdir.check_output(FLAGS.output or folder / NAME, endings=(".html",)))


if __name__ == "__main__":
    flags.DEFINE_string("output", None, f"Default: {NAME} in the run's folder, or beside several.")
    command.run(main, positional=True)
