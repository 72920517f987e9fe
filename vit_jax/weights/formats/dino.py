"""What Hugging Face's DINOv2 and DINOv3 have in common: names of arrays, and how they are matched.

Arrays of blocks are called by the number of their layer, behind a word such as "encoder.layer".
"""

from __future__ import annotations

from vit_jax.core.errors import UserError
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.files.tensors import Tensors
from vit_jax.weights.layout import Layout, Match, Rule, match, rule

# Of masked pre-training, and no part of the model.
MASK_TOKEN, MASK_TOKEN_PATTERN = "embeddings.mask_token", r"embeddings\.mask_token"


def tokens() -> tuple[Rule, ...]:
    """Of class token and registers."""
    return (
        rule("cls", "embeddings.cls_token", "1 1 D"),
        rule("registers", "embeddings.register_tokens", "1 R D"),
    )


def norms_and_scales(layers: str) -> tuple[Rule, ...]:
    """Of each block's norms and LayerScale."""
    return (
        *(
            rule(f"{norm}/{ours}", f"{layers}.{{}}.{norm}.{theirs}", "D")
            for norm in ("norm1", "norm2")
            for ours, theirs in (("scale", "weight"), ("bias", "bias"))
        ),
        rule("scale1/scale", f"{layers}.{{}}.layer_scale1.lambda1", "D"),
        rule("scale2/scale", f"{layers}.{{}}.layer_scale2.lambda1", "D"),
    )


def dense(layers: str, ours: str, theirs: str, kernel: str, bias: str | None) -> tuple[Rule, ...]:
    """Of a block's dense layer, or of several that are one of ours; `bias` None: without."""
    of_all = lambda leaf: " ".join(f"{layers}.{{}}.{name}.{leaf}" for name in theirs.split())
    rules = (rule(f"{ours}/kernel", of_all("weight"), kernel),)
    return rules if bias is None else (*rules, rule(f"{ours}/bias", of_all("bias"), bias))


def matched(opened: Opened, layout: Layout, tensors: Tensors) -> Match:
    """`tensors` of a file as `layout`. UserError with all that does not fit."""
    num_heads = (opened.config or {}).get("num_attention_heads")
    if type(num_heads) is not int or num_heads < 1:
        raise UserError(f"{opened.path}: its config.json says {num_heads!r} heads.")
    found = match(layout, tensors, {"H": num_heads})
    if found.sizes["D"] % num_heads:  # only to see whether the rest fits: stated.check refuses it
        found = match(layout, tensors, {"H": 1})
    if found.problems:
        raise UserError(
            f"{opened.path} looks like {layout.title}, but is not the same:\n  "
            + "\n  ".join(found.problems)
        )
    sizes = found.sizes
    if sizes["P"] != sizes["p"]:
        raise UserError(f"{opened.path}: its patches are {sizes['P']} x {sizes['p']} pixels.")
    return found
