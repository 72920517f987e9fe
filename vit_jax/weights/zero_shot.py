"""Heads that were never trained: classes by what a text tower wrote of their names.

As of CLIP (arXiv 2103.00020, section 3.1), a softmax of cosines times a scale, and of SigLIP
(2303.15343), sigmoids of them plus a bias. The text tower itself is other projects': see
docs/weights.md.
"""

import collections
import dataclasses
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from pyarrow import parquet

from vit_jax import models
from vit_jax.core import pytrees
from vit_jax.core.errors import UserError, reading
from vit_jax.weights.files import npz
from vit_jax.weights.loading import Loaded

_LENGTH = 1e-2  # of an embedding's from 1: those in float16 and bfloat16 are rounded


class Labels(NamedTuple):
    """The contents of a file: C classes, and the vectors [C, E] of length 1 of their names."""

    names: tuple[str, ...]
    embeddings: np.ndarray
    scale: float
    bias: float | None  # of SigLIP; None: CLIP's, which has none


def read_labels(path: str | Path) -> Labels:
    """Reads an .npz with `names`, `embeddings`, `scale` and, of SigLIP, `bias`. UserError.

    Or a .parquet with these columns, whose `scale` and `bias` are the same in all rows.
    """

    def check(is_valid: object, rule: str) -> None:
        if not is_valid:
            raise UserError(rule, field="labels", value=path)

    with reading("labels", path):
        read = _read_parquet if Path(path).suffix == ".parquet" else _read_npz
        arrays = read(Path(path))
        missing = {"names", "embeddings", "scale"} - arrays.keys()
        check(not missing, f"has no {', '.join(sorted(missing))}.")
        codes = np.ascontiguousarray(arrays["names"])
        is_text = codes.dtype.kind == "U" and codes.ndim == 1 and codes.size
        check(is_text, "has names that are not text.")
        rows = codes.view(np.uint32).reshape(len(codes), -1)  # str() dies of what is no character
        names = tuple(row.tobytes().decode("utf-32").rstrip("\0") for row in rows)
        keys = [key for key in ("embeddings", "scale", "bias") if key in arrays]
        embeddings, *scalars = (np.asarray(arrays[key], np.float32) for key in keys)
    shape = embeddings.shape
    has_rows = len(shape) == 2 and len(names) == shape[0]
    check(has_rows, f"has {len(names)} names, and vectors of the shape {shape}.")
    ((name, times),) = collections.Counter(names).most_common(1)
    check(times == 1, f"has the name {name!a} {times} times.")
    lengths = np.linalg.norm(embeddings, axis=1)
    for length in lengths[~(np.abs(lengths - 1) <= _LENGTH)]:  # NaN too
        check(False, f"has a vector of length {length:.3g}: divide each by its length.")
    are_numbers = all(x.size == 1 and np.isfinite(x).all() for x in scalars)
    check(are_numbers and (scalars[0] > 0).all(), "has no finite scale above 0, or no finite bias.")
    scale, bias, *_ = (*(x.item() for x in scalars), None)
    return Labels(names, embeddings, scale, bias)


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    return {name: x.read() for name, x in npz.read(path, npz.NUMBERS + npz.TEXT).items()}


def _read_parquet(path: Path) -> dict[str, np.ndarray]:
    with parquet.ParquetFile(path) as table:
        columns = table.read(["names", "embeddings", "scale", "bias"]).to_pydict()
    given = {key: np.array(column) for key, column in columns.items() if None not in column}
    return given | {key: np.unique(given[key]) for key in ("scale", "bias") if key in given}


def with_labels(loaded: Loaded, path: str | Path | None) -> Loaded:
    """The model with a head of the classes of a file, as `read_labels` takes it; None: as it is.

    Its features are those that images and texts share: with CLIP's projection, which timm has as a
    head, or SigLIP's attention pooling. UserError for other models, and vectors of another width.
    """
    if path is None:
        return loaded
    labels, model = read_labels(path), loaded.model
    spec, params = model.spec, pytrees.flatten(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    head = {name: params.pop(name) for name in ("head/kernel", "head/bias") if name in params}
    projection = getattr(spec, "projection", 0)
    is_shared = projection > 0 or getattr(spec, "pool", "") == "map"
    if head and not getattr(spec, "unit_features", False):
        has_place = hasattr(spec, "projection") and not projection
        is_shared = has_place and not jnp.any(head["head/bias"])
        projection, params["projection/kernel"] = model.num_classes, head["head/kernel"]
    if not is_shared:
        raise UserError(
            f"{loaded.name} has no features that images and texts share, as labels={path} needs: "
            "take CLIPModel, CLIPVisionModelWithProjection, SiglipModel, or a CLIP or SigLIP of "
            "timm with its head."
        )
    width, features = labels.embeddings.shape[1], projection or spec.features
    if width != features:
        rule = f"has vectors of {width} numbers, of texts; those of images have {features}."
        raise UserError(rule, field="labels", value=path)
    spec = dataclasses.replace(
        spec,
        projection=projection,
        unit_features=True,
        probabilities="softmax" if labels.bias is None else "sigmoid",
    )
    spec.check()
    params["head/kernel"] = jnp.asarray(labels.scale * labels.embeddings.T)
    params["head/bias"] = jnp.full(len(labels.names), labels.bias or 0.0, jnp.float32)
    abstract = models.abstract(spec, len(labels.names), model.preprocess)
    graph, layout = nnx.split(abstract, nnx.Param)
    ordered = {name: params[name] for name in pytrees.flatten(nnx.to_pure_dict(layout))}
    model = nnx.merge(graph, pytrees.unflatten(ordered))
    return loaded._replace(model=model, class_names=labels.names, thresholds=None)
