"""This project beside the peers: the latest rows of all benchmarks that have one, in one table.

    python -m benchmarks.peers                      # the table of docs/benchmarks.md
    python -m benchmarks.peers --before COMMIT      # with what this project's rows were there
    python -m benchmarks.peers --measure cpu --timm DIR --torch_python PYTHON --weights DIR \
        --photos DIR

Values of a line are of one file of benchmarks/results, on one machine, the last ones; where rows of
several seeds or turns have one commit, their median. `--measure` runs the commands behind the lines
of a machine first, one after the other: `cpu` (an hour; needs torch, timm and weights), `tpu` (by
compilation; needs libtpu, and a checkout by --big_vision). It leaves out the input pipeline where
memory is kept, fine-tuning on other data than photos, `benchmarks.evaluate_beside_timm`,
`mesh.shard_optimizer=true` on TPUs, and `benchmarks.compiled_for_gpu`; a GPU's are measured by
`benchmarks.on_accelerator`.
"""

import csv
import dataclasses
import io
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from absl import app, flags

from benchmarks import rows

FLAGS = flags.FLAGS
PEERS = ("timm", "timm, compiled", "Linen or tf.data", "big_vision")
BEST = ("+kept", "+mkl+kept+pages")  # settings of `own` and of those in torch, on CPUs


@dataclasses.dataclass(frozen=True)
class Cell:
    """Where a value lies: in `column` of the rows of a file that have `where`.

    beside: another column that the rows have to have.
    """

    file: str
    column: str
    where: Mapping[str, str]
    beside: str = ""

    def read(self, commit: str | None, device: str | None = None) -> tuple[float, str] | None:
        """The median of the rows of the last commit, and their device; None if there are none.

        commit: None: as the files are. device: only its rows.
        """
        found = [
            row
            for row in _rows(self.file, commit)
            if row[self.column]
            and (not self.beside or row[self.beside])
            and (device is None or row["device"] == device)
            and all(row.get(name) == value for name, value in self.where.items())
        ]
        if not found:
            return None
        last = found[-1]
        same = [row for row in found if _origin(row) == _origin(last)]
        return statistics.median(float(row[self.column]) for row in same), last["device"]


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of the table. `peers`: by the column's name. `less`: whether less is better."""

    what: str
    unit: str
    own: Cell
    peers: Mapping[str, Cell]
    less: bool = False

    def cells(self, before: str | None) -> Iterator[str]:
        """What, unit, ours (before and now), the peers', and the machine, as Markdown."""
        now = self.own.read(None)
        if now is None:
            yield from (self.what, self.unit, "not measured", *("" for _ in PEERS), "")
            return
        value, device = now
        peers = {name: cell.read(None, device) for name, cell in self.peers.items()}
        all_values = [value, *(peer[0] for peer in peers.values() if peer)]
        best = min(all_values) if self.less else max(all_values)
        show = lambda x: f"**{_digits(x)}**" if x == best and len(all_values) > 1 else _digits(x)
        yield self.what
        yield self.unit
        earlier = self.own.read(before, device) if before else None
        yield (f"{_digits(earlier[0])} → " if earlier else "") + show(value)
        for name in PEERS:
            peer = peers.get(name)
            yield show(peer[0]) if peer else ""
        yield device


def steps(
    shape: str, batch: int, *, dtype: str = "float32", forward: bool = False, best: bool = False
) -> Line:
    """A line from the rows of benchmarks.train_step on CPUs; all as shipped, or at their `best`."""
    file = "forward" if forward else "train_step"
    common = {"shape": shape, "batch": str(batch), "dtype": dtype}
    own, tuned = BEST if best else ("", "")
    cell = lambda name: Cell(file, "images_per_cpu_second", common | {"contender": name})
    peers = {"timm": cell(f"timm_vit{tuned}"), "timm, compiled": cell(f"timm_vit+compile{tuned}")}
    if not forward and not best and dtype == "float32":
        peers["Linen or tf.data"] = cell("linen+options")
    work = "inference" if forward else "training step"
    what = f"{shape} {work}, {dtype}, batch {batch}{', at their best' if best else ''}"
    return Line(what, "images/CPU-s", cell(f"own{own}"), peers)


def on_gpu(shape: str, batch: int) -> Line:
    """A line from the rows of benchmarks.on_accelerator."""
    case = {"part": "training", "case": f"{shape}, 224 px, {batch} images", "status": "measured"}
    cell = lambda name: Cell("on_accelerator", "images_per_second", case | {"entrant": name})
    peers = {"timm, compiled": cell("timm_vit+compile")}
    return Line(f"{shape} training step, bfloat16, batch {batch}", "images/s", cell("own"), peers)


def beside_timm(
    data: str, what: str, unit: str, column: str, *, less: bool, file: str = "beside_timm"
) -> Line:
    """A line from the rows of a benchmark that runs both programs from the shell."""
    # The same recipe; times are of runs alone, whose recipes differ in what takes no time.
    same_recipe = (
        {"head": "random", "cosine_begins": "after warmup"} if column == "accuracy" else {}
    )
    # Rows without times are of runs beside other programs.
    alone = "cpu_secs" if column == "peak_mib" else ""
    cell = lambda name: Cell(file, column, {"data": data, "program": name} | same_recipe, alone)
    peers = {"timm": cell("timm")}
    return Line(f"{what}, {data}", unit, cell("vit_jax"), peers, less=less)


def on_tpu(topology: str, settings: str = "") -> Line:
    """A line from the rows of benchmarks.compiled_for_tpu: ViT-L/16, batch 4096, data parallel.

    settings: of this project's program.
    """
    common = {"device": f"compiled for {topology}", "model": "ViT-L/16"}
    cell = lambda **where: Cell("compiled_for_tpu", "mega_cycles", common | where)
    what = f"L/16 training step, bfloat16, batch 4096, {topology}"
    return Line(
        what + f", `{settings}`" * bool(settings),
        "estimated megacycles",
        cell(program="own", settings=settings),
        {"big_vision": cell(program="big_vision", settings="")},
        less=True,
    )


def compiled_for_gpu(what: str, unit: str, column: str) -> Line:
    """A line from the rows of benchmarks.compiled_for_gpu: ViT-L/16, 64 images."""
    common = {"device": "compiled for h100:1", "variant": "", "settings": ""}
    cell = lambda name: Cell("compiled_for_gpu", column, common | {"program": name})
    peers = {"Linen or tf.data": cell("linen")}
    return Line(f"L/16 training step, one H100: {what}", unit, cell("own"), peers, less=True)


def pipeline(heap: str, plain: str) -> Line:
    """A line from the rows of benchmarks.input_pipeline."""
    where = {"heap": heap, "plain": plain}
    cell = lambda name: Cell("input_pipeline", f"{name}_images_per_cpu_second", where)
    return Line(
        f"decode, crop to 224 px, flip: photographs, heap {heap}, tf.data's {plain}",
        "images/CPU-s",
        cell("vit_jax"),
        {"Linen or tf.data": cell("plain")},
    )


LINES = (
    steps("Ti/16", 32),
    steps("S/16", 16),
    steps("S/16", 16, best=True),
    steps("S/16", 16, dtype="bfloat16"),
    steps("S/16", 16, dtype="bfloat16", best=True),
    steps("Ti/16", 8, forward=True),
    steps("Ti/16", 8, forward=True, best=True),
    steps("B/16", 8, forward=True),
    *(pipeline(heap, plain) for heap in ("default", "kept") for plain in ("floats", "bytes")),
    *(
        beside_timm(data, *what, less=less)
        for data in ("photos", "rsscn7_quarters", "cifar10_first")
        for *what, less in (
            ("fine-tuning Ti/16, accuracy", "of 1", "accuracy", False),
            ("fine-tuning Ti/16, time", "CPU-s", "cpu_secs", True),
        )
    ),
    beside_timm("photos", "fine-tuning Ti/16, memory", "MiB", "peak_mib", less=True),
    beside_timm(
        "photos1000",
        "evaluating Ti/16",
        "CPU-s",
        "cpu_secs",
        less=True,
        file="evaluate_beside_timm",
    ),
    on_gpu("S/16", 512),
    on_gpu("B/16", 256),
    on_gpu("L/16", 64),
    compiled_for_gpu("bytes accessed", "GB", "accessed_gb"),
    compiled_for_gpu("memory", "GiB", "peak_gib"),
    on_tpu("v5e:16x16"),
    on_tpu("v5e:16x16", "mesh.shard_optimizer=true"),
    on_tpu("v6e:16x16"),
)


def table(before: str | None = None) -> str:
    """The table as Markdown."""
    header = ["", "", "vit_jax", *PEERS, "device"]
    lines = [header, ["---"] * len(header), *(list(line.cells(before)) for line in LINES)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def commands(machine: str) -> Iterator[list[str]]:
    """The arguments of Python that measure the lines of a machine."""
    if machine == "tpu":
        for topology in ("v5e:16x16", "v6e:16x16"):
            peer = [f"--big_vision={FLAGS.big_vision}"] if FLAGS.big_vision else []
            yield ["-m", "benchmarks.compiled_for_tpu", f"--topology={topology}", *peer]
        return
    torch = f"--torch_python={FLAGS.torch_python}"
    step = ["-m", "benchmarks.train_step", torch]
    contenders = "own,timm_vit,timm_vit+compile"
    own, tuned = BEST
    both = f"{contenders},own{own},timm_vit{tuned},timm_vit+compile{tuned}"
    yield [*step, "--shape=Ti/16", f"--contenders={contenders}", "--steps=2"]
    yield [*step, "--shape=S/16", f"--contenders={both},linen+options", "--steps=2"]
    yield [*step, "--shape=S/16", "--dtype=bfloat16", f"--contenders={both}"]
    for shape in ("Ti/16", "B/16"):
        forward = ["--work=forward", f"--shape={shape}", "--batch=8"]
        yield [*step, *forward, f"--contenders={both}"]
    yield ["-m", "benchmarks.input_pipeline", f"--data_dir={FLAGS.photos}"]
    yield [
        "-m", "benchmarks.beside_timm", f"--timm={FLAGS.timm}",
        f"--timm_python={FLAGS.torch_python}", f"--weights={FLAGS.weights}",
        f"--data_dir={FLAGS.photos}",
    ]  # fmt: skip


def main(_: list[str]) -> None:
    """Measures if asked to, and prints the table."""
    if "cpu" in FLAGS.measure and not (FLAGS.timm and FLAGS.weights and FLAGS.photos):
        raise app.UsageError("--measure=cpu needs --timm, --weights and --photos.")
    if FLAGS.photos and Path(FLAGS.photos).name != "photos":
        raise app.UsageError(
            f"--photos={FLAGS.photos}: rows have the folder's name, and the lines are of those of "
            "`photos`. Rename it, or make a link of that name."
        )
    for machine in FLAGS.measure:
        for arguments in commands(machine):
            print("python", *arguments, flush=True)
            subprocess.run([sys.executable, *arguments], check=True)
    print(table(FLAGS.before))


def _rows(name: str, commit: str | None) -> list[dict[str, str]]:
    path = rows.RESULTS / f"{name}.csv"
    if commit is None:
        return list(csv.DictReader(path.open())) if path.exists() else []
    spec = f"{commit}:{path.relative_to(rows.RESULTS.parents[1])}"
    done = subprocess.run(["git", "show", spec], capture_output=True, text=True, check=False)
    return list(csv.DictReader(io.StringIO(done.stdout)))  # a file that was not there has no rows


def _origin(row: Mapping[str, str]) -> tuple[str, str]:
    return row["commit"], row["versions"]


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    flags.DEFINE_string("before", None, "A commit whose rows are shown as well.")
    flags.DEFINE_multi_enum("measure", [], ["cpu", "tpu"], "Which lines to measure first.")
    flags.DEFINE_string("timm", None, "Checkout of pytorch-image-models.")
    flags.DEFINE_string("torch_python", sys.executable, "Python that has torch and timm.")
    flags.DEFINE_string("weights", None, "Folder of a ViT-Ti/16's model.safetensors.")
    flags.DEFINE_string("photos", None, "Image folder with train/ and val/.")
    flags.DEFINE_string("big_vision", None, "Checkout of big_vision.")
    app.run(main)
