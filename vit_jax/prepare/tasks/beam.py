"""Runs independent tasks on Apache Beam, on one machine or many.

Tasks and results are files in the work directory, so the pipeline carries their numbers only. All
machines must see the source and the output under the same paths, on a shared file system. They also
need this package; --beam_flags tells Beam how they get it.
"""

import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from vit_jax.core.errors import UserError
from vit_jax.core.files import atomic_file


def on_beam(folder: Path, beam_flags: Sequence[str]) -> Callable[..., Iterator[object]]:
    """Like process_pool.in_processes; `folder`, not shared, holds tasks and results.

    Raises UserError if Beam is not installed.
    """
    try:
        import apache_beam  # noqa: F401, only to see whether it is installed
    except ImportError as error:
        raise UserError(
            f"--runner=beam needs Apache Beam ({error}): pip install 'vit_jax[beam]'."
        ) from error

    def run(function: Callable[[Any], object], tasks: Iterable[object]) -> Iterator[object]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        number = _write(folder, tasks)
        if number:
            _pipeline(function, str(folder), number, beam_flags)
        for k in range(number):
            result = pickle.loads(_result(folder, k).read_bytes())
            if isinstance(result, Exception):
                raise result
            yield result
        shutil.rmtree(folder, ignore_errors=True)

    return run


def _write(folder: Path, tasks: Iterable[object]) -> int:
    """Writes the tasks; their number."""
    number = 0
    for task in tasks:
        _task(folder, number).write_bytes(pickle.dumps(task))
        number += 1
    return number


def _pipeline(
    function: Callable[[Any], object], folder: str, number: int, beam_flags: Sequence[str]
) -> None:
    """Runs all tasks on Beam."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    with beam.Pipeline(options=PipelineOptions(list(beam_flags))) as pipeline:
        numbers = pipeline | beam.Create(range(number)) | beam.Reshuffle()
        _ = numbers | beam.Map(run_task, function, folder)


def run_task(number: int, function: Callable[[Any], object], folder: str) -> None:
    """Runs a task on a worker; errors of the user or the disk are results, too."""
    path = _result(Path(folder), number)
    if path.exists():  # Beam may repeat a finished task
        return
    task = pickle.loads(_task(Path(folder), number).read_bytes())
    try:
        result = function(task)
    except (UserError, OSError) as error:
        result = error
    with atomic_file(path) as temporary:
        temporary.write_bytes(pickle.dumps(result))


def _task(folder: Path, number: int) -> Path:
    return folder / f"{number}.task"


def _result(folder: Path, number: int) -> Path:
    return folder / f"{number}.result"
