"""What low-rank adapters save, and the two ways of computing with them.

    JAX_PLATFORMS=cpu python -m benchmarks.adapters --steps 5 model.depth=4 input.batch_size=8

The arguments are fields of a config, laid over ViT-B/16 at 224 px in batches of 64, Adam, 1000
classes. Contenders, each with a row in benchmarks/results/adapters.csv:

    everything   full fine-tuning
    activations  x W + s (x A) B, which is what this project does
    batched      the same, its second product with a batch axis, which no policy of remat keeps
    kernels      x (W + s A B), the kernel made anew in each step
    head         the head alone

A checkpoint holds parameters and optimizer. `peak_mib`, `gflops` and `sent_mib`, what a device
reduces over the others, are the compiler's. Steps are taken in turns, and their CPU time is
compared; with `--topology v5e:1x1` (needs libtpu) they are compiled for that chip instead, and
`mega_cycles` is the sum of its compiler's estimates.
"""

import contextlib
import time
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from benchmarks import rows
from benchmarks.compiled_step import base
from vit_jax import config as configs
from vit_jax.core import command
from vit_jax.learning.state import total_bytes
from vit_jax.models.layers.linear import Linear, affine, times
from vit_jax.run.parts import inputs
from vit_jax.tools.plan import topology
from vit_jax.tools.plan.compiled import compile_, mega_cycles, peak_bytes, planned_step
from vit_jax.tools.plan.hlo import sent_bytes

_STEPS = flags.DEFINE_integer("steps", 5, "That are timed, of each contender.", lower_bound=1)
FLAGS = flags.FLAGS
MIB = 2**20
ADAPTED = ("lora.kernels=blocks/.*/kernel",)
CONTENDERS = {
    "everything": (),
    "activations": ADAPTED,
    "batched": ADAPTED,
    "kernels": ADAPTED,
    "head": ("optim.freeze=(?!head/).*",),
}


def main(arguments: list[str]) -> None:
    """Measures, prints and records."""
    steps: dict[str, Any] = {}
    for name, fields in CONTENDERS.items():
        values = base(batch_size=64)
        values["model"] = {"name": "ViT-B/16", "dtype": "float32"}
        config = configs.resolve(values, [*arguments, *fields])
        absent = FLAGS.topology is not None
        mesh = topology.mesh(FLAGS.topology, config.mesh) if absent else inputs.mesh(config.mesh)
        with (
            mock.patch.object(Linear, *INSTEAD[name])
            if name in INSTEAD
            else contextlib.nullcontext()
        ):
            planned = planned_step(config, mesh)
            steps[name] = planned, compile_(planned)
    secs = {} if absent else in_turns(steps)
    for name, (planned, compiled) in steps.items():
        state = planned.layout.state
        row = {
            "settings": " ".join(arguments),
            "contender": name,
            "params_mib": round(total_bytes(state.params) / MIB, 1),
            "optimizer_mib": round(total_bytes(state.opt_state) / MIB, 1),
            "peak_mib": round(peak_bytes(compiled.memory_analysis()) / MIB, 1),
            "gflops": "" if absent else round(compiled.cost_analysis()["flops"] / 1e9, 1),
            "sent_mib": round(sum(sent(planned, compiled)) / MIB, 2),
            "mega_cycles": round(mega_cycles(compiled.as_text()), 2) if absent else "",
            "cpu_secs": "" if absent else round(secs[name], 3),
            "of_everything": "" if absent else round(secs[name] / secs["everything"], 3),
        }
        device = f"compiled for {FLAGS.topology}" if absent else None
        rows.record("adapters", "vit_jax", "jax", row, device=device)


def in_turns(steps: dict[str, Any]) -> dict[str, float]:
    """Median CPU time of a step of each contender, in seconds."""
    states, taken = {}, {name: [] for name in steps}
    for name, (planned, _) in steps.items():
        states[name] = planned.layout.init(0)
    rng = np.random.default_rng(0)
    draw = lambda x: jax.device_put(rng.integers(0, 2, x.shape).astype(x.dtype), x.sharding)
    batch = jax.tree.map(draw, next(iter(steps.values()))[0].batch)
    for turn in range(_STEPS.value + 1):
        for name, (_, compiled) in steps.items():
            began = time.process_time()
            states[name] = jax.block_until_ready(compiled(states[name], batch))[0]
            if turn:  # the first one warms up
                taken[name].append(time.process_time() - began)
    return {name: float(np.median(each)) for name, each in taken.items()}


def sent(planned: Any, compiled: Any) -> list[float]:
    """Bytes that a device sends or reduces in a step, by kind of collective."""
    return list(dict(sent_bytes(compiled.as_text(), planned.layout.mesh.shape)).values())


def kernel_made_anew(self: Linear, x: jax.Array) -> jax.Array:
    """A layer's result by its kernel with the product of the adapter's factors added to it."""
    bias, kernel = None if self.bias is None else self.bias[...], self.kernel[...]
    if self.lora_a is not None:
        a, b = self.lora_a[...], self.lora_b[...]
        product: Any = lambda a, b: jnp.tensordot(a, b, 1)
        if self.has_projections:
            product = jax.vmap(product, in_axes=(-2, 0), out_axes=a.ndim - 2)
        kernel = kernel + self.adapter_scale * product(a, b)
    return affine(x.astype(self.precision.compute), kernel, bias, self.contracted, self.precision)


def batched(self: Linear, x: jax.Array) -> jax.Array:
    """An adapter's part of a layer's result, by a product with a batch axis, be it of size 1."""
    a, b = self.lora_a[...], self.lora_b[...]
    x = times(affine(x, a, None, self.contracted, self.precision), self.adapter_scale)
    x, b = (x, b) if self.has_projections else (x[..., None, :], b[None])
    y = jnp.einsum("...nr,nro->...no", x, b.reshape(*b.shape[:2], -1).astype(x.dtype))
    return y.reshape(*x.shape[:-2], *self.kernel.shape[self.contracted :])


INSTEAD = {"kernels": ("__call__", kernel_made_anew), "batched": ("_adapted", batched)}


if __name__ == "__main__":
    flags.DEFINE_string("topology", None, "Such as v5e:1x1; default: the local devices.")
    command.run(main, positional=True)
