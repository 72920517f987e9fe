"""Draws runs on one page: vit-jax report runs/a runs/b --output report.html

Curves, final numbers and differences of the configs of one or many work directories, in one HTML
file that needs no network and no other file. The runs may still be in progress.
"""

import datetime
import os
from collections.abc import Sequence

from absl import flags
from etils import epath

from vit_jax.core import cloud, command
from vit_jax.core.errors import UserError
from vit_jax.store import runs, workdir
from vit_jax.tools.look.report import page

NAME = "report.html"


def report(folders: Sequence[epath.Path], output: epath.Path) -> None:
    """Writes the page. UserError if it cannot, or no folder is a work directory."""
    try:
        read = runs.read_all(folders)
    except OSError as error:
        raise UserError(
            f"{error.filename} cannot be read: {error.strerror}. Make it readable, or leave it out."
        ) from error
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
            place = str(folder) if cloud.is_remote(folder) else os.path.realpath(folder)
            by_place.setdefault(place, folder)
    return list(by_place.values())


FLAGS = flags.FLAGS


def main(arguments: list[str]) -> None:
    """The command."""
    folders = distinct(arguments)
    if not folders:
        raise UserError("Which runs? Give one or more work directories: runs/a runs/b, or runs/*/.")
    folder = folders[0] if len(folders) == 1 else folders[0].parent
    output = epath.Path(FLAGS.output).expanduser() if FLAGS.output else folder / NAME
    if output.suffix != ".html":
        raise UserError(f"--output={output} is not an HTML file: give a name that ends in .html.")
    report(folders, output)


if __name__ == "__main__":
    flags.DEFINE_string("output", None, f"Default: {NAME} in the run's folder, or beside several.")
    command.run(main, positional=True)
