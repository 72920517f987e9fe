"""The table of models by name, and figures of a model without building it."""

import dataclasses
import itertools
import re
from typing import Any

from flax import nnx

from vit_jax.core import errors, pytrees
from vit_jax.core.schema import entry_points
from vit_jax.core.schema import fields as declared
from vit_jax.core.token_layout import TokenLayout
from vit_jax.models import axial, bit, efficientnet, hybrid, vit
from vit_jax.models.family import Family, Preprocess

FAMILIES = (
    vit.FAMILY,
    hybrid.FAMILY,
    bit.FAMILY,
    axial.AXIAL_VIT,
    axial.AXIAL_RESNET,
    efficientnet.FAMILY,
)


@dataclasses.dataclass(frozen=True)
class ModelInfo:
    """Figures of one model.

    Attributes:
      parameters: number of scalars, without running statistics.
      forward_flops: FLOPs of the products of one image's forward pass (multiply-add = 2).
      activation_bytes: for one image in bfloat16, what is kept for the blocks' backward pass
        without rematerialisation; without the padding that devices add.
      block_input_bytes: likewise, if whole blocks are rematerialised.
      stride: pixels from one token to the next.
      spec: its fields.
      tokens: the layout of its tokens.
    """

    name: str
    parameters: int
    forward_flops: int
    activation_bytes: int
    block_input_bytes: int
    stride: int
    spec: dict[str, Any]
    tokens: TokenLayout


def available() -> tuple[str, ...]:
    """The published names; others of their form, such as "ViT-Ti/4", are valid too."""
    return tuple(name for family in FAMILIES for name in family.published)


def spec(name: str, **fields: Any) -> Any:
    """The fields for a name, with some overridden. UserError for unknown names and fields."""
    family = _of_name(name)
    known = [f.name for f in dataclasses.fields(family.spec)]
    for field in fields:
        if field not in known:
            nearest = errors.nearest(field, known)
            raise errors.UserError(f"{family.kind} has no field {field!r}. {nearest}")
    done = family.spec(**{**(family.named(name) or {}), **fields})
    declared.check(done)
    done.check()
    return done


def kind(name: str) -> str:
    """The kind of a model's name: "A ViT", "A BiT ResNet", and so on. UserError if unknown."""
    return _of_name(name).kind


def spec_of_json(name: str, fields: dict[str, Any]) -> Any:
    """The specification for fields written as JSON."""
    tuples = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    return _of_name(name).spec(**tuples)


def build(spec: Any, **arguments: Any) -> Any:
    """Builds the model of a specification; arguments as for ViT."""
    families = [*FAMILIES, *entry_points.in_use("models")]
    family = next(family for family in families if family.spec is type(spec))
    return family.module(spec, **arguments)


def architecture(spec: Any) -> dict[str, Any]:
    """The fields that weights are trained with, and their values."""
    return {field: getattr(spec, field) for field in declared.trained(spec)}


def hidden_fields() -> list[str]:
    """The fields of all families that affect what parameters compute, not always their shapes."""
    by_family = (declared.trained(family.spec, as_=declared.HIDDEN) for family in FAMILIES)
    return list(dict.fromkeys(itertools.chain(*by_family)))


def config_fields() -> dict[str, declared.Declared]:
    """The fields of all families that a config may give, sizes first."""
    by_name = {name: f for family in FAMILIES for name, f in declared.of(family.spec).items()}
    in_config = {name: f for name, f in by_name.items() if f.doc}
    return dict(sorted(in_config.items(), key=lambda item: item[1].bounds != declared.COUNT))


def _of_name(name: str) -> Family:
    family = next((f for f in FAMILIES if f.named(name) is not None), None)
    # A plug-in "Mixer" has the models "Mixer" and "Mixer-S/16".
    for plugin in () if family else (name, name.partition("-")[0]):
        found = entry_points.find("models", plugin)
        if found and found.named(name) is not None and family is None:
            _check_spec(found)
            family = found
    if family is None:
        forms = "; ".join(family.form for family in FAMILIES)
        raise errors.UserError(f"Unknown model {name!r}. {_meant(name)} There are {forms}.")
    return family


def _check_spec(family: Family) -> None:
    """Raises UserError for a spec of another family: `build` goes by the class of the spec."""
    for other in (*FAMILIES, *entry_points.in_use("models")):
        if other.spec is family.spec and other.module is not family.module:
            name = family.spec.__name__
            raise errors.UserError(
                f"{family.kind}: its spec {name} is that of {other.kind}, whose module would be "
                f"built. Give the Family a dataclass of its own: class Spec({name}): pass."
            )


def _meant(name: str) -> str:
    """A hint about an unknown name: a model with this name in another project, or the nearest."""
    ours = model_meant(name)
    if ours is None or all(family.named(ours) is None for family in FAMILIES):
        return errors.nearest(name, [*available(), *entry_points.names("models")])
    return (
        f"Did you mean {ours!r}? The image size is what input.preprocess gives; init.weights names "
        "trained weights."
    )


def create(
    name: str,
    *,
    num_classes: int,
    image_size: int | tuple[int, int],
    rngs: nnx.Rngs,
    preprocess: Preprocess | None = None,
    **fields: Any,
) -> Any:
    """Creates a model with random parameters, in evaluation mode.

    Args:
      name: such as "ViT-B/16"; see `available`.
      num_classes: C, for the head; 0: no head, the model returns features.
      image_size: pixels, one number for squares or (height, width).
      rngs: nnx.Rngs; the stream "params" (or the default one) seeds the initialisation.
      preprocess: default: images resized to `image_size`, [0, 1] mapped to [-1, 1].
      **fields: fields of the model to override, such as depth=4.

    Raises:
      UserError: unknown name or field; patches that do not tile the image.
    """
    size = _pair(image_size)
    if not declared.is_whole(num_classes) or num_classes < 0:
        raise errors.UserError(f"num_classes={num_classes!r}: a number of classes; 0: no head.")
    preprocess = preprocess or Preprocess(image_size=size, resize=size)
    return build(
        spec(name, **fields),
        num_classes=num_classes,
        image_size=size,
        preprocess=preprocess,
        rngs=rngs,
    )


def info(
    name: str, *, num_classes: int = 1000, image_size: int | tuple[int, int] = 224, **fields: Any
) -> ModelInfo:
    """Computes the figures of a model without allocating it."""
    size = _pair(image_size)
    make = lambda: create(
        name, num_classes=num_classes, image_size=size, rngs=nnx.Rngs(0), **fields
    )
    params = nnx.to_pure_dict(nnx.state(nnx.eval_shape(make), nnx.Param))
    own = spec(name, **fields)
    return ModelInfo(
        name=name,
        parameters=pytrees.num_elements(pytrees.without_statistics(params)),
        forward_flops=own.forward_flops(num_classes, size),
        activation_bytes=own.activation_bytes(size),
        block_input_bytes=own.block_input_bytes(size),
        stride=own.stride,
        spec=dataclasses.asdict(own),
        tokens=own.token_layout(size),
    )


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    sides = size if isinstance(size, tuple | list) else (size, size)
    if len(sides) != 2 or not all(declared.is_whole(side) and side >= 1 for side in sides):
        raise errors.UserError(
            f"image_size={size!r}: pixels, at least 1, one number or (height, width)."
        )
    return sides[0], sides[1]


# Names of models in other projects: only for messages, none is accepted.
_SIZES = {
    "tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H", "giant": "g",
    "gigantic": "G", "so400m": "So400m", "ti": "Ti", "t": "Ti", "s": "S", "b": "B", "l": "L",
    "h": "H", "7b": "7B",
}  # fmt: skip
_WORD = "tiny|small|base|large|huge|gigantic|giant|so400m|7b"
_SIZE = rf"(?P<size>{_WORD}|ti|t|s|b|l|h|g)"
_FORMS = (
    re.compile(rf"vit_(?P<size>{_WORD})_r(?P<units>\d*)_s(?P<patch>\d+)(_.*)?", re.I),
    re.compile(rf"r(?P<units>\d*)[-_+ ]+(vit)?[-_]?{_SIZE}[-_/](?P<patch>\d+)", re.I),
    re.compile(r"(resnetv2_|bit[-_]?[sm]?[-_]r|r)(?P<resnet>\d+)x(?P<factor>\d+)([-_].*)?", re.I),
    re.compile(r"bit[-_](?P<resnet>\d+)", re.I),
    re.compile(r"(tf_)?efficientnet[-_]?(?P<efficient>b[0-7]|l2)([-_].*)?", re.I),
    re.compile(
        rf"dinov(?P<dino>2)(?P<reg>[-_]with[-_]registers)?[-_](vit)?{_SIZE}(?P<patch>14)?(_reg)?"
        r"(_lc)?", re.I,
    ),
    re.compile(rf"dinov(?P<dino>3)[-_]vit{_SIZE}(?P<patch>16)(?P<plus>plus)?([-_].*)?", re.I),
    re.compile(
        rf"(vit|deit3?)[-_](?P<size>{_WORD})([-_](?P<plus>plus))?([-_]distilled)?"
        r"[-_]patch[-_]?(?P<patch>\d+)(_(?P<reg>reg\d))?"
        r"([-_]dinov(?P<dino>[23])([-_].*)?|[-_]?.*)", re.I,
    ),
    re.compile(rf"(vit[-_ ]?)?{_SIZE}[-_/ ]?(?P<patch>\d+)", re.I),
)  # fmt: skip


def model_meant(name: str) -> str | None:
    """The model here for a name in other projects; None for an unknown form.

    Names of timm, DeiT, torchvision, Hugging Face, big_vision and Google's files, such as
    "vit_tiny_patch16_224", "google/vit-base-patch16-224-in21k", "vit_b_16", "B/16", "ViT-B_16",
    "BiT-M-R50x1".
    """
    last = name.rpartition("/")[2] if name.count("/") and "-patch" in name else name
    last = last.removeprefix("facebook/").removeprefix("google/").partition(".")[0].strip()
    for form in _FORMS:
        match = form.fullmatch(last)
        if match:
            return _model_name(match.groupdict(), last)
    return None


def _model_name(part: dict[str, str | None], name: str) -> str:
    if part.get("resnet"):
        return f"R{part['resnet']}x{part.get('factor') or 1}"
    if part.get("efficient"):
        return f"EfficientNet-{(part['efficient'] or '').upper()}"
    given = part["size"] or ""
    size = given if given in "gG" else _SIZES[given.lower()]
    size += "+" if part.get("plus") else ""
    patch = part.get("patch") or "14"  # Hugging Face's DINOv2 names omit it
    style = ""
    if "dino" in part and part["dino"] is not None:
        style = f"-dinov{part['dino'] or 2}"
        style += "-reg" if style == "-dinov2" and (part.get("reg") or "_reg" in name) else ""
    hybrid = f"R{part['units']}+" if part.get("units") is not None else ""
    return f"{hybrid}ViT-{size}/{patch}{style}"
