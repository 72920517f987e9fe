"""Formats of other projects: a new one is a file and its line here."""

import dataclasses

from vit_jax.core.errors import naming
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


def understand(opened: Opened) -> ExternalWeights:
    """The model in another project's file."""
    note = ""
    opened, training = authors.without_training(opened)
    with naming(str(opened.path)):
        try:
            contents = _read(opened)
        except MisfitError as misfit:
            contents, note = read_without(
                opened.tensors,
                misfit.args[0],
                lambda tensors: _read(dataclasses.replace(opened, tensors=tensors)),
            )
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
