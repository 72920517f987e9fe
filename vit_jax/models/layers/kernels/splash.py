"""Attention on TPUs by JAX's splash attention, for tokens in blocks of whole lanes (128)."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention as splash

from vit_jax.core.axes import BATCH, HEAD_SIZE, HEADS, TOKENS, per_device, target
from vit_jax.models.layers.kernels.fused import LANES
from vit_jax.models.layers.kernels.xla import MIXED
from vit_jax.models.layers.linear import times

BLOCKS = (640, 512, 384, 256)  # tokens of a block, where one is not enough
_AXES = (BATCH, TOKENS, HEADS, HEAD_SIZE)


def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """softmax(q k^T / sqrt(K)) v for [B, N, H, K] each; [B, N, H, K].

    Softmax and sums are computed in float32; its output and a logarithm for each query are kept for
    the backward pass. Tokens are padded to whole blocks, and the padding is masked. Elsewhere than
    on a TPU Pallas interprets the kernels, which is slow.
    """
    return per_device(_local, [_AXES] * 3, [_AXES], query, key, value)[0]


def _local(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array]:
    tokens, num_heads = query.shape[1:3]
    block = block_of(tokens)
    padded = block * math.ceil(tokens / block)
    pad = [(0, 0), (0, 0), (0, padded - tokens), (0, 0)]
    scaled = times(query, query.shape[-1] ** -0.5)
    lying = [jnp.pad(x.transpose(0, 2, 1, 3), pad) for x in (scaled, key, value)]
    kernel: Any = _kernel(num_heads, padded, block)
    if padded == tokens:
        mixed: Any = jax.vmap(kernel)(*lying)
    else:
        # Queries see keys of their own segment; those behind the last token see the first one too.
        key_segments = (jnp.arange(padded) >= tokens).astype(jnp.int32)
        segments = splash.SegmentIds(q=jnp.zeros(padded, jnp.int32), kv=key_segments)
        mixed = jax.vmap(functools.partial(kernel, segment_ids=segments))(*lying)
    return (mixed[:, :, :tokens].transpose(0, 2, 1, 3),)


def _kernel(num_heads: int, tokens: int, block: int) -> Any:
    """Splash attention of all tokens to all, one image at a time."""
    layout = splash.QKVLayout.SEQ_MINOR  # as XLA has them: K may be shorter than a register
    sizes = splash.BlockSizes(
        block_q=block,
        block_kv=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        use_fused_bwd_kernel=True,
        q_layout=layout,
        k_layout=layout,
        v_layout=layout,
    )
    return splash.make_splash_mha(
        splash.MultiHeadMask([splash.FullMask((tokens, tokens))] * num_heads),
        head_shards=1,
        q_seq_shards=1,
        block_sizes=sizes,
        residual_checkpoint_name=MIXED,
        interpret=target().platform != "tpu",
    )


def block_of(tokens: int) -> int:
    """Tokens of one block: all, or as many as leave little padding."""
    if tokens <= max(BLOCKS):
        return LANES * math.ceil(tokens / LANES)
    return min(BLOCKS, key=lambda block: block * math.ceil(tokens / block))
