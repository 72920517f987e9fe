"""The step that compiled_for_tpu compares with, from big_vision's own code."""

import dataclasses

import jax

from benchmarks import big_vision_step
from benchmarks.contenders import SHAPES


def test_the_peer_of_compiled_for_tpu_is_a_step_of_its_code(reference):
    shape = dataclasses.replace(SHAPES["B/16"], depth=2, batch=4)
    update, arrays = big_vision_step.program(reference("big_vision").path, shape, "bfloat16")
    params, opt_state, loss, norms = jax.eval_shape(update, *arrays)
    assert (loss.shape, sorted(norms)) == ((), ["grads", "params", "updates"])
    like = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
    assert like((params, opt_state)) == like(arrays[:2])
    assert "encoderblock_1" in params["Transformer"]
