"""A model in another project's file, and the record by which each format is read and written."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from vit_jax import models
from vit_jax.weights.config_consistency import Size
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.files.tensors import Tensors
from vit_jax.weights.layout import Layout
from vit_jax.weights.match import Match

Documents = dict[str, dict[str, Any]]
ClassNames = tuple[str, ...] | None


@dataclasses.dataclass(frozen=True)
class ExternalWeights:
    """The contents of a file, in this project's terms.

    Attributes:
      name: such as "ViT-B/16"; the spec has all that differs from the fields that it implies.
      match: gives the parameters.
      pads_class_position: whether the class token has no position, which equals one of zeros.
    """

    name: str
    spec: Any
    num_classes: int  # 0: no head
    class_names: ClassNames
    preprocess: models.Preprocess
    match: Match
    pads_class_position: bool

    def array(self, name: str) -> np.ndarray:
        """The model's parameter of this name, float32."""
        array = self.match.ours(name)
        if name == "positions/embedding" and self.pads_class_position:
            return np.concatenate([np.zeros_like(array[:1]), array])
        return array

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all parameters, by name."""
        shapes = self.match.shapes()
        if "positions/embedding" not in shapes:
            return shapes
        rows, width = shapes["positions/embedding"]
        return shapes | {"positions/embedding": (rows + self.pads_class_position, width)}


def _unchanged(tensors: Tensors, *_: Any) -> Tensors:
    return tensors


@dataclasses.dataclass(frozen=True)
class Format:
    """A kind of model in one project's format, for reading and writing.

    All functions raise UserError for what cannot be read, computed here, or written.

    Attributes:
      destination: its name in `convert --to`; several kinds of model may share it.
      recognises: whether a file may be one, by its kind and its config.json.
      layouts: the tables of parameters to try for a file.
      reads: the model in a file that matches a layout; the pair is the size of the images that the
        caller gave, for files that do not say it.
      holds: whether it is for models of this spec and number of classes.
      layout_for: the layout that a model is written in.
      documents: the JSON files beside the arrays, by name.
      hint: the end of the message about a model that it cannot hold.
      model_types: the `model_type` of config.json that it reads.
      heads: the number of heads of a file; None: the shapes show it, or there are none.
      sizes: sizes that config.json may state, which have to be those of the arrays.
      unpacked: a file's arrays, named as in the layouts.
      packed: arrays to write, as the format's files have them.
      is_plain: whether fields of `core.schema.fields` without a place elsewhere are refused.
    """

    destination: str
    recognises: Callable[[Opened], bool]
    layouts: Callable[[Opened], tuple[Layout, ...]]
    reads: Callable[[Opened, Match, tuple[int, int] | None], ExternalWeights]
    holds: Callable[[Any, int], bool]
    layout_for: Callable[[Any], Layout]
    documents: Callable[[Any, int, ClassNames, models.Preprocess], Documents]
    hint: str
    model_types: tuple[str, ...] = ()
    heads: Callable[[Opened, Match], int] | None = None
    sizes: Callable[[Match, Mapping[str, Any]], Iterator[Size]] = lambda *_: iter(())
    unpacked: Callable[[Tensors], Tensors] = _unchanged
    packed: Callable[[Tensors, Any, int], Tensors] = _unchanged
    is_plain: bool = True


def is_model_type(opened: Opened, *types: str) -> bool:
    """Whether config.json states one of these Hugging Face model types."""
    return (opened.config or {}).get("model_type") in types


def may_be(opened: Opened, *types: str, architecture: bool = False) -> bool:
    """Whether config.json states one of these types or a timm architecture, or states neither."""
    config = opened.config or {}
    if opened.kind == "npz":
        return False
    if "model_type" in config:
        return is_model_type(opened, *types)
    return architecture or "architecture" not in config
