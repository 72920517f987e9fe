"""The parts that are programs of their own: the matrix rate, resuming, a profile, memory."""

import dataclasses
import json
import random
import shutil
import tarfile
from pathlib import Path
from typing import Any

from benchmarks.contenders import Shape, own
from benchmarks.on_accelerator import COPY, trace_summary
from benchmarks.on_accelerator.contests import COMPILE_SECS, DTYPE, GIB, OWN, case_of, start
from benchmarks.on_accelerator.session import Session
from benchmarks.workers import LineProcess, run_to_end
from vit_jax.parallel.chips import GPUS
from vit_jax.run.environment import DETERMINISTIC_FLAGS

RESUMED_STEPS = 8
LARGEST_PROFILE_BYTES = 15 * 2**20  # to be taken from the machine


def matrix(session: Session) -> None:
    """Rates of the device."""
    if not session.wanted(COPY, OWN.name, 20):  # the last of its rows
        return
    toy = ["--sides=64,128", "--copy_mib=1", "--repeats=1"]
    with session.attempt(COPY, OWN.name):
        program = _program(session, "matrix_rate", toy if session.dry else [])
        try:
            for _ in range(3 if session.dry else 4):
                said = program.read(session.wait_secs())
                session.write(said.pop("case"), OWN.name, **said)
        finally:
            program.close()


def memory(session: Session) -> None:
    """What steps took on the device, by what their compiler said, and by what `plan` says."""
    for row in session.journal.of("training"):
        case = row["case"]
        if row["entrant"] == OWN.name and session.wanted(case, OWN.name, 0):
            _ratio(session, case, OWN.name, row["peak_gib"], float(row["compiled_gib"]))
    for size in session.sizes("B/16", "L/16"):  # as in `training`
        shape = session.shape(size)
        case = case_of(size, shape)
        measured = [row for row in session.journal.of("training")
                    if (row["case"], row["entrant"]) == (case, OWN.name)]  # fmt: skip
        if measured and session.wanted(case, "plan", COMPILE_SECS[size]):
            with session.attempt(case, "plan"):
                planned = _planned_bytes(session, shape)
                _ratio(session, case, "plan", measured[0]["peak_gib"], planned / GIB)


def _ratio(session: Session, case: str, entrant: str, peak_gib: str, said_gib: float) -> None:
    ratio = round(float(peak_gib) / said_gib, 4) if said_gib else ""
    session.write(
        case,
        entrant,
        peak_gib=peak_gib,
        compiled_gib=round(said_gib, 5),
        value=ratio,
        unit="peak / compiled" if entrant == OWN.name else "peak / planned",
    )


def _planned_bytes(session: Session, shape: Shape) -> int:
    """The peak of a step by `plan`: for a GPU of this name, or else for the device here."""
    values = own.settings(shape)
    preprocess = f"decode|resize({shape.image_px})"
    values["input"] |= {"preprocess": preprocess, "num_examples": shape.batch}
    fields = shape.of_models()
    values["model"] = {name: fields[name] for name in fields if name not in own.OF_INPUT}
    values["model"]["dtype"] = DTYPE
    file = session.scratch / "planned.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        "from ml_collections import ConfigDict\n"
        f"def get_config(arg=None):\n    return ConfigDict({values!r})\n"
    )
    known = [name for name, chip in GPUS.items() if chip.device_kind == session.journal.device]
    topology = [f"--topology={name}:1" for name in known]
    arguments = ["-m", "vit_jax", "plan", f"--config={file}", "--json", *topology]
    # The device is taken; XLA compiles for one like it on the host.
    environment = session.environment | ({"JAX_PLATFORMS": "cpu"} if known else {})
    document = run_to_end("plan", arguments, environment, session.wait_secs())
    return json.loads(document)["memory"]["peak"]


def resume(session: Session) -> None:
    """Killed and started again, does a training end with the bits of one that was not?"""
    flags = {"XLA_FLAGS": " ".join(DETERMINISTIC_FLAGS)}
    for name, variables in (("deterministic", flags), ("default flags", {})):
        case = f"B/16, {name}"
        if session.wanted(case, OWN.name, 100):
            with session.attempt(case, OWN.name):
                _resume(session, case, variables)


def _resume(session: Session, case: str, variables: dict[str, str]) -> None:
    folder = session.scratch / "resumed"
    shutil.rmtree(folder, ignore_errors=True)
    straight = _train(session, folder / "straight", variables)
    dies_after = random.randrange(3, RESUMED_STEPS)  # a save every second step
    before = _train(session, folder / "killed", variables, dies_after=dies_after)
    after = _train(session, folder / "killed", variables)
    losses = before["losses"] | after["losses"]
    differ = [name for name, bits in straight["bits"].items() if after["bits"].get(name) != bits]
    same = not differ and losses == straight["losses"]
    note = (
        f"killed after step {dies_after} of {RESUMED_STEPS}, resumed from {after['start']}; "
        f"{len(straight['bits']) - len(differ)} of {len(straight['bits'])} arrays have the same "
        f"bits, losses {'equal' if losses == straight['losses'] else 'differ'}"
    )
    session.write(case, OWN.name, value=int(same), unit="same bits", note=note)
    shutil.rmtree(folder, ignore_errors=True)


def _train(
    session: Session, workdir: Path, variables: dict[str, str], dies_after: int | None = None
) -> dict[str, Any]:
    """Losses by step, and bits at the end; without the bits if it dies after a step."""
    shape = json.dumps(dataclasses.asdict(session.shape("B/16")))
    arguments = [f"--shape={shape}", f"--workdir={workdir}", f"--steps={RESUMED_STEPS}"]
    program = _program(session, "resumed_run", [*arguments, f"--dtype={DTYPE}"], variables)
    losses: dict[int, float] = {}
    try:
        while True:
            said = program.read(session.wait_secs())
            if "bits" in said:
                return {"losses": losses, **said}
            losses[said["step"]] = said["loss"]
            if said["step"] == dies_after:
                program.kill()
                return {"losses": losses}
    finally:
        program.close()


def profile(session: Session) -> None:
    """A trace of some steps, packed into one file, and a table of what took longest."""
    for size in session.sizes("L/16"):
        shape = session.shape(size)
        name = f"profile_{size.replace('/', '')}"
        if not session.wanted(size, OWN.name, 50):  # compiled before, in `training`
            continue
        folder = session.scratch / name
        shutil.rmtree(folder, ignore_errors=True)
        with session.attempt(size, OWN.name):
            worker = start(session, OWN, shape, "train")
            try:
                worker.wait_until_ready(session.wait_secs())
                steps = worker.ask(f"profile {folder}", session.wait_secs())["steps"]
            finally:
                worker.close()
            packed = session.journal.folder / f"{name}.tar.gz"
            _pack(folder, packed)
            longest = trace_summary.write(folder, session.journal.folder / f"{name}.csv", steps)
            mib = round(packed.stat().st_size / 2**20, 2)
            session.write(size, OWN.name, value=mib, unit="MiB", note=longest)


def _pack(folder: Path, packed: Path) -> None:
    """The files of a trace as one; where that is large, without the form that repeats programs."""
    for left_out in ("", ".xplane.pb"):
        with tarfile.open(packed, "w:gz") as archive:
            for file in filter(Path.is_file, folder.rglob("*")):
                if not left_out or not file.name.endswith(left_out):
                    archive.add(file, folder.name / file.relative_to(folder))
        if packed.stat().st_size < LARGEST_PROFILE_BYTES:
            return


def _program(
    session: Session, module: str, arguments: list[str], variables: dict[str, str] | None = None
) -> LineProcess:
    environment = session.environment | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return LineProcess(
        module,
        ["-m", f"benchmarks.on_accelerator.{module}", *arguments],
        environment | (variables or {}),
    )
