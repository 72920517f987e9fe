"""Google's .npz files: the released ones of ViT and AugReg, and those of big_vision.

The released files have a position for the class token; in big_vision it has none, which is the
same as one of zeros. Neither has LayerScale.
"""

from __future__ import annotations

from vit_jax.weights.layout import Layout, Rule, rule

# What its readers compute; the arrays do not tell.
FIELDS = {"gelu": "tanh", "norm_epsilon": 1e-6}

# Wherever a name is optional in one file it is so in all, so one table describes each.
_AROUND = (
    rule("patches/kernel", "embedding/kernel", "P p 3 D"),
    rule("patches/bias", "embedding/bias", "D"),
    rule("cls", "cls", "1 1 D"),
    rule("norm/scale", "Transformer/encoder_norm/scale", "D"),
    rule("norm/bias", "Transformer/encoder_norm/bias", "D"),
    rule("pre_logits/kernel", "pre_logits/kernel", "D E"),
    rule("pre_logits/bias", "pre_logits/bias", "E"),
    rule("head/kernel", "head/kernel", "D C"),
    rule("head/bias", "head/bias", "C"),
)
PREFIXES = ("", "params/", "target/", "opt/target/", "optimizer/target/", "params/img/")
# What a whole training state has besides.
IGNORED = (
    r"(opt|opt_state|optimizer|extra|state|chrono|params/t)(/.*)?",
    "step",
    "measurements/.*",
)


def _attention(ours: str, theirs: str, layers: str) -> tuple[Rule, ...]:
    qkv = lambda leaf: " ".join(f"{theirs}/{n}/{leaf}" for n in ("query", "key", "value"))
    return (
        rule(f"{ours}/qkv/kernel", qkv("kernel"), f"{layers} D H K"),
        rule(f"{ours}/qkv/bias", qkv("bias"), f"{layers} H K"),
        rule(f"{ours}/out/kernel", f"{theirs}/out/kernel", f"{layers} H K D"),
        rule(f"{ours}/out/bias", f"{theirs}/out/bias", f"{layers} D"),
    )


def _norm(ours: str, theirs: str, layers: str = "") -> tuple[Rule, ...]:
    return tuple(
        rule(f"{ours}/{leaf}", f"{theirs}/{leaf}", f"{layers} D") for leaf in ("scale", "bias")
    )


def _mlp(ours: str, theirs: str, layers: str = "") -> tuple[Rule, ...]:
    return (
        rule(f"{ours}/fc1/kernel", f"{theirs}/Dense_0/kernel", f"{layers} D M"),
        rule(f"{ours}/fc1/bias", f"{theirs}/Dense_0/bias", f"{layers} M"),
        rule(f"{ours}/fc2/kernel", f"{theirs}/Dense_1/kernel", f"{layers} M D"),
        rule(f"{ours}/fc2/bias", f"{theirs}/Dense_1/bias", f"{layers} D"),
    )


def _blocks(
    under: str, layers: str, *, norm1: str, attention: str, norm2: str, mlp: str
) -> tuple[Rule, ...]:
    return (
        *_norm("norm1", f"{under}/{norm1}", layers),
        *_attention("attention", f"{under}/{attention}", layers),
        *_norm("norm2", f"{under}/{norm2}", layers),
        *_mlp("mlp", f"{under}/{mlp}", layers),
    )


def _map_head() -> tuple[Rule, ...]:
    attention = "MAPHead_0/MultiHeadDotProductAttention_0"
    rules = [
        rule("pooling/probe", "MAPHead_0/probe", "1 1 D"),
        rule("pooling/query/kernel", f"{attention}/query/kernel", "D H K"),
        rule("pooling/query/bias", f"{attention}/query/bias", "H K"),
        rule("pooling/out/kernel", f"{attention}/out/kernel", "H K D"),
        rule("pooling/out/bias", f"{attention}/out/bias", "D"),
    ]
    for leaf, axes in (("kernel", "D H K"), ("bias", "H K")):
        names = f"{attention}/key/{leaf} {attention}/value/{leaf}"
        rules.append(rule(f"pooling/key_value/{leaf}", names, axes))
    return (
        *rules,
        *_norm("pooling/norm", "MAPHead_0/LayerNorm_0"),
        *_mlp("pooling/mlp", "MAPHead_0/MlpBlock_0"),
    )


_NEW = {
    "norm1": "LayerNorm_0",
    "attention": "MultiHeadDotProductAttention_0",
    "norm2": "LayerNorm_1",
    "mlp": "MlpBlock_0",
}
_NEW_POSITIONS = rule("positions/embedding", "pos_embedding", "1 N D")

RELEASED = Layout(
    title="Google's .npz as released",
    rules=(
        *_AROUND,
        rule("positions/embedding", "Transformer/posembed_input/pos_embedding", "1 N D"),
        *_blocks(
            "Transformer/encoderblock_{}",
            "",
            norm1="LayerNorm_0",
            attention="MultiHeadDotProductAttention_1",
            norm2="LayerNorm_2",
            mlp="MlpBlock_3",
        ),
    ),
    prefixes=PREFIXES,
    ignored=IGNORED,
)
BIG_VISION = Layout(
    title="big_vision's .npz, layer by layer",
    rules=(
        *_AROUND,
        _NEW_POSITIONS,
        *_blocks("Transformer/encoderblock_{}", "", **_NEW),
        *_map_head(),
    ),
    prefixes=PREFIXES,
    ignored=IGNORED,
)
BIG_VISION_STACKED = Layout(
    title="big_vision's .npz, layers stacked",
    rules=(
        *_AROUND,
        _NEW_POSITIONS,
        *_blocks("Transformer/encoderblock", "L", **_NEW),
        *_map_head(),
    ),
    prefixes=PREFIXES,
    ignored=IGNORED,
)
LAYOUTS = (RELEASED, BIG_VISION, BIG_VISION_STACKED)


def layout_for(pool: str) -> Layout:
    """The one that a model with this pooling is written in; the released one where it can be."""
    return RELEASED if pool == "cls" else BIG_VISION
