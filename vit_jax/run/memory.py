"""Checks that arrays fit before they are allocated, and advice when memory runs out."""

import contextlib
import math
import re
from collections.abc import Iterator

import jax
import numpy as np

from vit_jax.config import RunConfig
from vit_jax.core import machine
from vit_jax.core.arrays import RGB, Pixels
from vit_jax.core.errors import UserError
from vit_jax.core.screen import format_bytes
from vit_jax.learning.losses import Batch
from vit_jax.learning.state import StateLayout, device_bytes


def check_fits(layout: StateLayout, batch: Batch, num_classes: int, cached_bytes: int = 0) -> None:
    """Raises UserError if the state and a teacher do not fit, even without gradients.

    `batch`: shapes and shardings of a batch, whose targets [B, num_classes] have to fit as well.
    `cached_bytes`: of the images that each device keeps.
    """
    there = device_memory(layout.mesh.local_devices[0])
    state = device_bytes((layout.state, layout.teacher_params))
    targets = num_classes * device_bytes(batch["weight"])  # float32 each
    if there is None or state + targets + cached_bytes <= there:
        return
    if state + targets <= there:
        what = f"images beside a state of {format_bytes(state)}"
        nbytes, cure = cached_bytes, "set input.cache=ram"
    elif targets > there:
        what, nbytes = "the targets of a batch", targets
        cure = "correct input.num_classes, or lower input.batch_size"
    else:
        what = "the state" + " and the teacher" * bool(layout.teacher_params)
        nbytes, cure = state, "divide it by mesh.fsdp, mesh.tensor or mesh.shard_optimizer"
    raise UserError(
        f"A device has {format_bytes(there)}, too little for {what}, {format_bytes(nbytes)}: "
        f"{cure}."
    )


def check_batch_fits(
    field: str,
    batch_size: int,
    image_size: tuple[int, int],
    device: jax.Device,
    num_devices: int,
    *,
    pixels: Pixels = RGB,
    parts: int = 1,
) -> None:
    """Raises UserError for a batch whose images alone do not fit into the devices.

    They arrive as `pixels`, and are float32 for the model, which takes a batch in `parts`.
    """
    there = device_memory(device)
    value_bytes = np.dtype(pixels.dtype).itemsize + 4 / parts
    image_bytes = math.ceil(pixels.channels * image_size[0] * image_size[1] * value_bytes)
    if there is None or batch_size * image_bytes <= there * num_devices:
        return
    raise UserError(
        f"{field}={batch_size:,} images take more than the devices have: give at most "
        f"{there * num_devices // image_bytes:,}."
    )


def device_memory(device: jax.Device) -> int | None:
    """Memory of a device in bytes; of a CPU, the memory shared by all of this process.

    None where the device does not report it, as one that is not there, of a plan.
    """
    if device.platform == "cpu":
        return machine.memory_bytes() // jax.local_device_count()
    try:
        stats = device.memory_stats()
    except jax.errors.JaxRuntimeError:
        return None
    return None if not stats else stats.get("bytes_limit")


@contextlib.contextmanager
def explain_out_of_memory(config: RunConfig, *, evaluating: bool = False) -> Iterator[None]:
    """Turns XLA's RESOURCE_EXHAUSTED and MemoryError into a UserError that names the cures.

    evaluating: what runs is no training, and only its own batches can be made smaller.
    """
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        text = str(error)
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in text:
            raise
        wanted = re.search(r"(?:allocat\w+|[Rr]equir\w+|[Uu]sed) [\d.,]+ ?\w+", text)
        cures = (
            f"a lower input.batch_size (now {config.input.batch_size}); the same batch by gradient "
            f"accumulation, optim.grad_accum_steps (now {config.optim.grad_accum_steps}); "
            f"model.remat=dots_no_batch or full (now {config.model.remat or 'none'}); "
            "model.dtype=bfloat16"
        )
        if evaluating:
            cures = ", ".join(
                f"evals.{name}.{c.size_field} "
                f"(now {getattr(c, c.size_field) or config.input.batch_size})"
                for name, c in config.evals.items()
            )
        detail = (f" ({wanted[0]})" if wanted else "") + " in an evaluation" * evaluating
        raise UserError(
            f"Out of memory{detail}. Any of these needs less: {cures}; more devices."
        ) from error
