"""Formats of other projects: a new one is a file and its line here."""

import dataclasses
import re

from vit_jax.core.errors import UserError, naming
from vit_jax.weights.external import ExternalWeights, Format, refuse
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.formats import authors, dino, eva, google_npz, huggingface, timm, towers
from vit_jax.weights.match import Match, MisfitError, read_without

# The order in which they are tried, for a file or for a model.
FORMATS: tuple[Format, ...] = (
    dino.DINOV2,
    dino.DINOV3,
    towers.TOWER,
    towers.BEIT,
    huggingface.DEIT,
    huggingface.FORMAT,
    huggingface.BIT,
    authors.FORMAT,
    eva.FORMAT,
    timm.FORMAT,
    google_npz.FORMAT,
)
# Names of arrays in models that cannot be computed here -> what it is that they have.
_REFUSED = {
    r"patch_embed\.proj\.\d": "patches embedded by several convolutions",
    r"layer1\.0\.conv1\.": "a ResNet, and not one of BiT's",
    r"downsample_layers\.": "a ConvNeXt",
    r"visual\.trunk\.": "a model of timm's as OpenCLIP's half of images: take timm's file of it",
    r"attn_pool\.query": "attention pooling by several queries",
    r"\bcls_norm\.": "a norm of the class token, and another of patches",
    r"attn\.(ln_[qk]|ln_inner|logit_scale)\b": "attention of OpenCLIP's custom blocks",
    r"\A(?!.*relative_position).*\b(rope\.freqs|blocks\.\d+\.(attn\.(q_bias|q_proj\.weight)|gamma_1))"
    r"$": "blocks of EVA's kind, whose positions no array shows: put timm's config.json beside it, "
    "which says its architecture",
}


def understand(opened: Opened) -> ExternalWeights:
    """The model in another project's file."""
    note = ""
    opened, training = authors.without_training(opened)
    with naming(str(opened.path)):
        try:
            contents = _read(opened)
        except MisfitError as misfit:
            try:
                contents, note = read_without(
                    opened.tensors,
                    misfit.args[0],
                    lambda tensors: _read(dataclasses.replace(opened, tensors=tensors)),
                )
            except UserError as error:
                names = "\n".join(opened.tensors)
                unnamed = not {"architecture", "model_type"} & opened.entries.keys()
                for pattern, what in _REFUSED.items():
                    if unnamed and re.search(pattern, names, re.DOTALL | re.MULTILINE):
                        raise UserError(f"It has {what}.") from error
                raise
    return dataclasses.replace(contents, notes=(opened.note, training, note, *contents.notes))


def _read(opened: Opened) -> ExternalWeights:
    """The model in the first format that the file fits. MisfitError with all matches if none."""
    matches: list[Match] = []
    for format_ in FORMATS:
        if format_.recognises(opened):
            try:
                return format_.reads(opened)
            except MisfitError as misfit:
                matches += misfit.args[0]
    if not matches and "model_type" in opened.entries:
        readable = ", ".join(kind for f in FORMATS for kind in f.model_types)
        refuse({"model_type": opened.entries["model_type"]}, f"is none of {readable}")
    raise MisfitError(matches)
