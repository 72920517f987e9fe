"""Hugging Face's CLIP, SigLIP, BEiT and Data2VecVision: ViTs beside a text's, or beside masks.

CLIPVisionModel and SiglipVisionModel, and the images' half of CLIPModel and SiglipModel: what their
`pooler_output` is, the features of a model without a head, or `image_embeds` with CLIP's projection
to what images and texts share (CLIPVisionModelWithProjection). Siglip2Model, which takes images of
any aspect, for those of one size. BEiT and Data2VecVision, with a table of relative positions in
each layer: classifiers, and models with the pooler of the mean.
"""

import dataclasses
import functools
import math
import re
from typing import Any

import numpy as np

from vit_jax.models.vit import ViTSpec
from vit_jax.weights import external
from vit_jax.weights.external import Documents, ExternalWeights, Format, ModelToWrite
from vit_jax.weights.files import Tensor, Tensors, listed
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.formats import huggingface, huggingface_processors
from vit_jax.weights.match import best
from vit_jax.weights.tables import Layout, Pack, rules

_TOWER_TABLE = """
patches             : embeddings.patch_embedding
positions/embedding : embeddings.position_embedding.weight
norm[1 2]           : encoder.layers.{}.layer_norm[1 2]
attention/qkv       : encoder.layers.{}.self_attn.[q_proj k_proj v_proj]
attention/out       : encoder.layers.{}.self_attn.out_proj
mlp/fc[1 2]         : encoder.layers.{}.mlp.fc[1 2]
norm                : post_layernorm
"""
_CLIP_TABLE = """
cls        : embeddings.class_embedding
pre_norm   : pre_layrnorm
projection : visual_projection
"""
_SIGLIP_TABLE = """
pooling/probe            : head.probe : 1 1 *
pooling/query/kernel     : head.attention.query_weight
pooling/query/bias       : head.attention.query_bias
pooling/key_value/kernel : head.attention.key_value_weight
pooling/key_value/bias   : head.attention.key_value_bias
pooling/out              : head.attention.out_proj
pooling/norm             : head.layernorm
pooling/mlp/fc[1 2]      : head.mlp.fc[1 2]
"""
_BEIT_TABLE = """
patches                           : embeddings.patch_embeddings.projection
cls                               : embeddings.cls_token : 1 1 *
blocks/block/positions/offsets_2d : LAYER.attention.attention.RELATIVE
norm1                             : LAYER.layernorm_before
attention/qkv/kernel              : LAYER.attention.attention.[query.weight key.weight value.weight]
attention/[query value]_bias      : LAYER.attention.attention.[query.bias value.bias]
attention/out                     : LAYER.attention.output.dense
scale[1 2]/scale                  : LAYER.lambda_[1 2]
norm2                             : LAYER.layernorm_after
mlp/fc1                           : LAYER.intermediate.dense
mlp/fc2                           : LAYER.output.dense
norm                              : layernorm
feature_norm                      : pooler.layernorm
head                              : classifier
""".replace("LAYER", "encoder.layer.{}").replace(
    "RELATIVE", "relative_position_bias.relative_position_bias_table"
)
_OF_TEXTS = (
    r"text_model\..*", r"text_projection\.weight", r"logit_(scale|bias)",
    r"(.*\.)?position_ids",
)  # fmt: skip
_CLIP = Layout(
    "Hugging Face's CLIP, its images' half",
    rules(_TOWER_TABLE, _CLIP_TABLE),
    prefixes=("", "vision_model."),
    ignored=_OF_TEXTS,
    needed=("cls", "pre_norm"),
    optional=("patch_bias",),
)
_SIGLIP = Layout(
    "Hugging Face's SigLIP, its images' half",
    rules(_TOWER_TABLE, _SIGLIP_TABLE),
    prefixes=("", "vision_model."),
    ignored=_OF_TEXTS,
    needed=("pooling",),
    packs=(Pack("attention.in_proj_", ("attention.query_", "attention.key_value_"), (2,)),),
)
_BEIT = Layout(
    "Hugging Face's BEiT",
    rules(_BEIT_TABLE),
    prefixes=("", "beit.", "data2vec_vision."),
    ignored=(r".*relative_position_index", r"embeddings\.mask_token"),
    computes={"position_embedding": "relative_2d", "qkv_bias": "query_value"},
    needed=("cls",),
    optional=("norm",),
)
_EPSILONS = {"clip": 1e-5, "siglip": 1e-6}
_GELUS = {"clip": "quick_gelu", "siglip": "gelu_pytorch_tanh"}


def defaults(kind: str) -> dict[str, Any]:
    """Defaults of transformers' config of a tower, "clip" or "siglip", or of "beit"."""
    config = dict(huggingface.VIT_CONFIG)
    del config["pooler_act"]
    usual = config["hidden_act"], config["layer_norm_eps"]
    gelu, epsilon = _GELUS.get(kind, usual[0]), _EPSILONS.get(kind, usual[1])
    return config | {"hidden_act": gelu, "layer_norm_eps": epsilon}


def _as_convolution(tensors: Tensors) -> Tensors:
    """Arrays with Siglip2's dense layer of patches, [D, P * P * 3], as others' [D, 3, P, P]."""
    changed = dict(tensors)
    for name, dense in tensors.items():
        width, inputs = dense.shape if len(dense.shape) == 2 else (0, 0)
        side = math.isqrt(inputs // 3)
        if name.endswith("embeddings.patch_embedding.weight") and 3 * side * side == inputs:
            rows = functools.partial(_channels_first, dense, (width, side, side, 3))
            changed[name] = Tensor((width, 3, side, side), dense.dtype, rows)
    return changed


def _channels_first(dense: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    return np.moveaxis(dense.read().reshape(shape), 3, 1)


def _read_tower(opened: Opened) -> ExternalWeights:
    kind = str(opened.entries["model_type"]).partition("_")[0]
    tensors = _as_convolution(opened.tensors) if kind == "siglip2" else opened.tensors
    match = best([_CLIP if kind == "clip" else _SIGLIP], tensors)
    left = [name for name in opened.tensors if re.match(r"text_(model|projection)\.", name)]
    if "vision_config" in opened.entries:
        opened = dataclasses.replace(
            opened, config=dict(external.section(opened.entries, "vision_config"))
        )
    config = huggingface.with_defaults(opened, defaults(kind.removesuffix("2")))
    huggingface.check_sizes(opened, match)
    size = external.sides("image_size", config["image_size"])
    if kind == "siglip2":  # of images of any aspect: of one, the square that it has positions for
        size = (math.isqrt(match.sizes["N"]) * match.sizes["P"],) * 2
    match, image_size = external.with_image_size(opened, match, size)
    return external.external_weights(
        external.with_heads(opened, match, config["num_attention_heads"]),
        huggingface_processors.read(opened, image_size),
        fields=huggingface.fields(config, match),
        assumed=huggingface.assumed(opened),
        notes=(
            *([f"left out, as of texts: {listed(left)}."] if left else []),
            *(["images of any aspect are resized to one square."] if kind == "siglip2" else []),
        ),
    )


def _holds_tower(spec: Any, num_classes: int) -> bool:
    """Returns whether a model is a tower; those with a head are other classes."""
    if type(spec) is not ViTSpec or num_classes:
        return False
    clip = spec.pool == "cls" and spec.pre_norm and not spec.patch_bias
    siglip = spec.pool == "map" and spec.patch_bias and not spec.pre_norm
    return spec.qkv_bias == "all" and (clip or (siglip and not spec.has_class_token))


def _tower_documents(model: ModelToWrite) -> Documents:
    spec: ViTSpec = model.spec
    kind = "siglip" if spec.pool == "map" else "clip"
    architecture = {"clip": "CLIPVisionModel", "siglip": "SiglipVisionModel"}[kind]
    architecture += "WithProjection" if spec.projection else ""
    config = huggingface.vit_config(model, architecture, f"{kind}_vision_model")
    config |= {"projection_dim": spec.projection} if spec.projection else {}
    return huggingface.documents(config | {"intermediate_size": spec.mlp_dim}, model)


TOWER = Format(
    destination="huggingface",
    model_types=(
        "clip_vision_model",
        "clip",
        "siglip_vision_model",
        "siglip",
        "siglip2_vision_model",
        "siglip2",
    ),
    needs_type=True,
    reads=_read_tower,
    holds=_holds_tower,
    layout_for=lambda spec: _SIGLIP if spec.pool == "map" else _CLIP,
    documents=_tower_documents,
    states=("pool", "pre_norm", "patch_bias"),
)

# --- BEiT


def _read_beit(opened: Opened) -> ExternalWeights:
    match = best([_BEIT], opened.tensors)
    config = huggingface.with_defaults(opened, defaults("beit"))
    stated = {"hidden_size": "D", "num_hidden_layers": "L", "patch_size": "P"}
    external.check_sizes(opened, {key: match.sizes[letter] for key, letter in stated.items()})
    huggingface.check_head(opened, match)
    height, width = external.sides("image_size", config["image_size"])
    external.check_offsets(match, (height, width))
    match = external.with_heads(opened, match, match.sizes["H"])
    mean = match.has("feature_norm")
    return external.external_weights(
        match,
        huggingface_processors.read(opened, (height, width)),
        fields={
            **huggingface.fields(config, match),
            "pool": "avg" if mean else "cls",
            "class_token": mean,
            "layer_scale": external.positive(config, "layer_scale_init_value", 0.1)
            if match.has("scale1")
            else 0.0,
        },
        class_names=huggingface.class_names(config, match),
        assumed=huggingface.assumed(opened),
    )


def _holds_beit(spec: Any, _: int) -> bool:
    if type(spec) is not ViTSpec or spec.position_embedding != "relative_2d":
        return False
    pools = {("avg", True, "features"), ("cls", False, "tokens")}
    return (spec.pool, spec.class_token, spec.final_norm) in pools


def _beit_documents(model: ModelToWrite) -> Documents:
    spec: ViTSpec = model.spec
    architecture = "BeitForImageClassification" if model.num_classes else "BeitModel"
    config = huggingface.vit_config(model, architecture, "beit") | {
        "intermediate_size": spec.mlp_dim,
        "use_relative_position_bias": True,
        "use_mean_pooling": spec.pool == "avg",
        "layer_scale_init_value": spec.layer_scale,
    }
    return huggingface.documents(config, model)


BEIT = Format(
    destination="huggingface",
    model_types=("beit", "data2vec-vision"),
    needs_type=True,
    reads=_read_beit,
    holds=_holds_beit,
    layout_for=lambda _: _BEIT,
    documents=_beit_documents,
    packed=lambda tensors, model: huggingface.with_prefix("beit.", tensors, model.num_classes),
    states=("position_embedding", "position_at", "qkv_bias", "class_token", "final_norm"),
)
