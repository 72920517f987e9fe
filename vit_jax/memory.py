"""Out of memory: what to change, instead of a screen full of XLA."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import jax

from vit_jax.config import RunConfig
from vit_jax.core.errors import UserError


@contextlib.contextmanager
def explain_out_of_memory(config: RunConfig) -> Iterator[None]:
    """Turns XLA's RESOURCE_EXHAUSTED and MemoryError into a UserError that names the cures."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        text = str(error)
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in text:
            raise
        wanted = re.search(r"(?:allocat\w+|[Rr]equir\w+|[Uu]sed) [\d.,]+ ?\w+", text)
        detail = f" ({wanted[0]})" if wanted else ""
        raise UserError(
            f"Out of memory{detail}. Any of these needs less: a lower input.batch_size (now "
            f"{config.input.batch_size}); the same batch by gradient accumulation, "
            f"optim.accumulate (now {config.optim.accumulate}); "
            f"model.remat=dots_no_batch or full (now {config.model.remat or 'none'}); "
            "model.dtype=bfloat16; more devices."
        ) from error
