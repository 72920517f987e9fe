"""The parts in which contenders take turns: training, attention, inference, deterministic flags.

Two processes are on the device at a time, the first entrant and one of the others; turn by turn
each runs some steps and some large matrix products. So every ratio is of one minute, and two fit
where four would not. The first of the others is built while the first entrant is. Where not even
two fit, they are measured apart, one after the other.
"""

import statistics
from typing import NamedTuple

from benchmarks import rows
from benchmarks.contenders import Shape
from benchmarks.on_accelerator.journal import MEASURED
from benchmarks.on_accelerator.session import Session
from benchmarks.workers import Worker, WorkerEnded, flops
from vit_jax.models.layers.kernels import choice
from vit_jax.parallel.chips import peak_flops
from vit_jax.run.environment import DETERMINISTIC_FLAGS

DTYPE = "bfloat16"
TURNS, STEPS = 6, 15
# As their authors tune them for a GPU; plain Linen also with the compiler options of this project.
TIMM = "timm_vit+compile"
PEERS = (TIMM, "torch_vit+compile", "linen+options", "linen")
# Seconds until a contender has compiled, about; the longest of all.
COMPILE_SECS = {"S/16": 50, "B/16": 55, "L/16": 80, "H/14": 120}
GIB = 2**30


class Entrant(NamedTuple):
    """A contender with its settings; `name` is for the rows."""

    name: str
    module: str
    fields: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


OWN = Entrant("own", "own")
DETERMINISTIC = "own+deterministic"
NAMES = (OWN.name, *PEERS, DETERMINISTIC, *choice.CHOICES)  # of all entrants


def training(session: Session) -> None:
    """B/16 and L/16 against timm, then against its other peers; other sizes; larger batches."""
    timm, *others = (Entrant(name, name) for name in PEERS)
    for sizes in (("B/16", "L/16"), ("S/16", "H/14")):
        for peers in ([timm], others):
            for size in session.sizes(*sizes):
                contest(session, size, session.shape(size), [OWN, *peers])
        if session.dry:
            return
    for size, batch in (("L/16", 128), ("B/16", 512)):
        contest(session, size, session.shape(size, batch=batch), [OWN, timm], apart=True)


def attention(session: Session) -> None:
    """Every choice of model.attention, at the usual length and at 1,025 tokens."""
    first = sorted(attention_choices(), key=lambda name: name != choice.XLA)
    entrants = [Entrant(name, "own", (f"model.attention={name}",)) for name in first]
    for shape in (session.shape("B/16"), session.shape("B/16", image_px=512, batch=24)):
        contest(session, "B/16", shape, entrants)


def attention_choices() -> tuple[str, ...]:
    """The choices of model.attention, on a GPU without those of TPUs, which only cost time there.

    By nvidia-smi: this process leaves the device to those that it starts.
    """
    of_tpus = (choice.FUSED, choice.SPLASH) if rows.gpu() else ()
    return tuple(name for name in choice.CHOICES if name not in of_tpus)


def deterministic(session: Session) -> None:
    """What XLA's deterministic flags cost."""
    flags = (("XLA_FLAGS", " ".join(DETERMINISTIC_FLAGS)),)
    entrants = [OWN, Entrant(DETERMINISTIC, "own", environment=flags)]
    contest(session, "B/16", session.shape("B/16"), entrants)


def inference(session: Session) -> None:
    """Logits of a batch, with parameters in bfloat16."""
    for size in session.sizes("B/16", "L/16"):
        shape = session.shape(size, batch=256)
        peers = [Entrant(TIMM, TIMM)]
        contest(session, size, shape, [OWN, *peers], work="forward")


def contest(
    session: Session,
    size: str,
    shape: Shape,
    entrants: list[Entrant],
    *,
    work: str = "train",
    apart: bool = False,
) -> None:
    """The first entrant against each of the others; a row for each."""
    first, *others = entrants
    case = case_of(size, shape)
    needs = COMPILE_SECS[size] + 20
    due = [one for one in others if session.wanted(case, one.name, needs)]
    if not due and not session.wanted(case, first.name, needs):
        return
    against = start(session, first, shape, work, apart)
    try:
        if apart or not due:
            against = alone(session, case, shape, first, against, work)
        if apart and against:
            against.close()
        for rival in due:
            # The first may have taken long, so the time is looked at again.
            if rival is due[0] or session.wanted(case, rival.name, needs):
                against = pair(session, case, shape, (first, against), rival, work, apart)
        missing = not session.journal.done(session.part, case, first.name)
        if against and missing and session.wanted(case, first.name, 0):  # all others have failed
            against = alone(session, case, shape, first, against, work)
    finally:
        if against:
            against.close()


def case_of(size: str, shape: Shape) -> str:
    """The name of a case in the rows."""
    return f"{size}, {shape.image_px} px, {shape.batch} images"


def alone(
    session: Session, case: str, shape: Shape, first: Entrant, worker: Worker, work: str
) -> Worker | None:
    """The turns of the first entrant, and its row; None if it has failed."""
    with session.attempt(case, first.name):
        worker.wait_until_ready(session.wait_secs())
        turns(session, [worker])
        if session.wanted(case, first.name, 0):
            write(session, case, shape, first, worker, None, work)
        return worker
    return None


def pair(
    session: Session,
    case: str,
    shape: Shape,
    own: tuple[Entrant, Worker | None],
    rival: Entrant,
    work: str,
    apart: bool,
) -> Worker | None:
    """Two in turns, and their rows; returns the first one's worker, None if it has failed."""
    first, against = own
    other = start(session, rival, shape, work, apart)
    try:
        if against:
            try:
                against.wait_until_ready(session.wait_secs())
            except WorkerEnded:
                with session.attempt(case, first.name):
                    raise
                against = None
        with session.attempt(case, rival.name):
            other.wait_until_ready(session.wait_secs())
            turns(session, [against, other] if against and not apart else [other])
            if against and not apart and session.wanted(case, first.name, 0):
                write(session, case, shape, first, against, None, work)
            write(session, case, shape, rival, other, against, work)
    finally:
        other.close()
    return against if against and (apart or against.alive()) else None


def start(
    session: Session, entrant: Entrant, shape: Shape, work: str, apart: bool = False
) -> Worker:
    """The process of an entrant, which begins to build."""
    # JAX's processes take their share of the memory at once: growing, they would take more than
    # they need. Torch's have the rest.
    share = {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "true",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9" if apart else "0.45",
    }
    environment = session.environment | share | dict(entrant.environment)
    return Worker(
        entrant.module, shape, DTYPE, fields=entrant.fields, work=work, environment=environment
    )


def turns(session: Session, workers: list[Worker]) -> None:
    """Turns of some steps each, after one that is forgotten."""
    number, steps = (1, 2) if session.dry else (TURNS, STEPS)
    for worker in workers:
        worker.turn(2, at_once=True, timeout_secs=session.wait_secs())
        worker.forget()
    for _ in range(number):
        for worker in workers:
            worker.turn(steps, at_once=True, timeout_secs=session.wait_secs())


def write(
    session: Session,
    case: str,
    shape: Shape,
    entrant: Entrant,
    worker: Worker,
    against: Worker | None,
    work: str,
) -> None:
    """The row of an entrant, from the median step."""
    secs = statistics.median(worker.steps["wall_secs"])
    product = statistics.median(worker.product_rates)
    peak = peak_flops(session.journal.device)
    rate = flops(shape, work) / secs
    ready = worker.ready
    ratio = secs / statistics.median(against.steps["wall_secs"]) if against else None
    planned, compile_secs = ready["planned_bytes"], ready["compile_secs"]
    session.write(
        case,
        entrant.name,
        MEASURED,
        images_per_second=round(shape.batch / secs, 2),
        step_ms=round(secs * 1e3, 3),
        share_of_matrix_rate=round(rate / product, 4),
        share_of_datasheet_rate=round(rate / peak, 4) if peak else None,
        matrix_tflops=round(product / 1e12, 2),
        own_is_faster_by=round(ratio, 4) if ratio else None,
        peak_gib=round(ready["peak_bytes"] / GIB, 5),
        compiled_gib=round(planned / GIB, 5) if planned else None,
        compile_secs=None if compile_secs is None else round(compile_secs, 1),
        first_step_secs=round(ready["ready_secs"], 1),
        note=f"first loss {ready['first_loss']:.4f}" if work == "train" else "",
    )
