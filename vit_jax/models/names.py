"""The table of models by name, and figures of a model without building it."""

import dataclasses
import functools
import itertools
import re
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.core import errors, pytrees
from vit_jax.core.schema import entry_points
from vit_jax.core.schema import fields as declared
from vit_jax.core.token_layout import TokenLayout
from vit_jax.models.family import Family, Preprocess
from vit_jax.models.layers.kernels import choice
from vit_jax.parallel.products import count

# In the order in which they are asked for a name; plug-ins come behind them.
FAMILIES = entry_points.Parts[Family](
    "models",
    {
        "ViT": "vit_jax.models.vit:FAMILY",
        "R+ViT": "vit_jax.models.hybrid:FAMILY",
        "R": "vit_jax.models.bit:FAMILY",
        "Axial-ViT": "vit_jax.models.axial:AXIAL_VIT",
        "AxialResNet": "vit_jax.models.axial:AXIAL_RESNET",
        "EfficientNet": "vit_jax.models.efficientnet:FAMILY",
    },
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
    return tuple(name for family in FAMILIES.values() for name in family.published)


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
    families = itertools.chain(FAMILIES.values(), entry_points.in_use("models"))
    family = next(family for family in families if family.spec is type(spec))
    return family.module(spec, **arguments)


def abstract(spec: Any, num_classes: int, preprocess: Preprocess) -> Any:
    """The model of a specification by shapes alone."""
    return nnx.eval_shape(
        lambda: build(
            spec,
            num_classes=num_classes,
            image_size=preprocess.image_size,
            preprocess=preprocess,
            rngs=nnx.Rngs(0),
        )
    )


@functools.cache
def forward_flops(spec: Any, num_classes: int, image_size: tuple[int, int]) -> int:
    """FLOPs of the products of one image's forward pass; a multiply-add counts 2.

    Every block counts with all tokens, as in papers, though with pool="cls" and without `scan` the
    last block computes less: the class token alone.
    """
    looped = dataclasses.replace(spec, scan=True)
    graph, params = nnx.split(abstract(looped, num_classes, Preprocess(image_size, image_size)))
    image = jax.ShapeDtypeStruct((1, *image_size, spec.channels), jnp.float32)
    with choice.portable():
        program = jax.make_jaxpr(lambda params, x: nnx.merge(graph, params)(x))(params, image)
    return int(count(program, [False] * len(program.in_avals), [False]).given)


def architecture(spec: Any) -> dict[str, Any]:
    """The fields that weights are trained with, and their values."""
    return {field: getattr(spec, field) for field in declared.trained(spec)}


def hidden_fields() -> list[str]:
    """The fields of all families that affect what parameters compute, not always their shapes."""
    by_family = (declared.trained(family.spec, as_=declared.HIDDEN) for family in FAMILIES.values())
    return list(dict.fromkeys(itertools.chain(*by_family)))


def find_family(name: str) -> Family | None:
    """Our own family that has a model of this name."""
    return next((f for f in FAMILIES.values() if f.named(name) is not None), None)


def config_fields(family: Family | None = None) -> dict[str, declared.Declared]:
    """The fields that a config may give, sizes first; of all our families, or of one."""
    families = FAMILIES.values() if family is None else [family]
    by_name = {name: f for one in families for name, f in declared.of(one.spec).items()}
    in_config = {name: f for name, f in by_name.items() if f.doc}
    return dict(sorted(in_config.items(), key=lambda item: item[1].bounds != declared.COUNT))


def _of_name(name: str) -> Family:
    family = find_family(name)
    # A plug-in "Mixer" has the models "Mixer" and "Mixer-S/16".
    for plugin in () if family else (name, name.partition("-")[0]):
        found = entry_points.find("models", plugin)
        if found and found.named(name) is not None and family is None:
            _check_spec(found)
            family = found
    if family is None:
        forms = "; ".join(family.form for family in FAMILIES.values())
        raise errors.UserError(f"Unknown model {name!r}. {_meant(name)} There are {forms}.")
    return family


def _check_spec(family: Family) -> None:
    """Raises UserError for a spec of another family: `build` goes by the class of the spec."""
    for other in (*FAMILIES.values(), *entry_points.in_use("models")):
        if other.spec is family.spec and other.module is not family.module:
            name = family.spec.__name__
            raise errors.UserError(
                f"{family.kind}: its spec {name} is that of {other.kind}: give it a dataclass of "
                "its own."
            )


def _meant(name: str) -> str:
    """A hint about an unknown name: a model with this name in another project, or the nearest."""
    ours = model_meant(name)
    if ours is None or find_family(ours) is None:
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
    _check_num_classes(num_classes)
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
    _check_num_classes(num_classes)
    own, preprocess = spec(name, **fields), Preprocess(size, size)
    params = nnx.to_pure_dict(nnx.state(abstract(own, num_classes, preprocess), nnx.Param))
    return ModelInfo(
        name=name,
        parameters=pytrees.num_elements(pytrees.without_statistics(params)),
        forward_flops=forward_flops(own, num_classes, size),
        activation_bytes=own.activation_bytes(size),
        block_input_bytes=own.block_input_bytes(size),
        stride=own.stride,
        spec=dataclasses.asdict(own),
        tokens=own.token_layout(size),
    )


def _check_num_classes(number: Any) -> None:
    if not declared.is_whole(number) or number < 0:
        raise errors.UserError(f"num_classes={number!r}: a number of classes; 0: no head.")


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    sides = size if isinstance(size, tuple | list) else (size, size)
    if len(sides) != 2 or not all(declared.is_whole(side) and side >= 1 for side in sides):
        raise errors.UserError(f"image_size={size!r}: pixels, one number or (height, width).")
    return sides[0], sides[1]


# Sizes in names of other projects, "vit_tiny_patch16_224" or "google/vit-base-patch16-224".
_SIZES = {"tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H", "giant": "g"}
_NAME_OF_OTHERS = re.compile(
    rf"(?:.*/)?(?:vit|deit3?)[-_]({'|'.join(_SIZES)})(?:[-_]distilled)?[-_]patch(\d+)"
    r"(_reg4)?(_dinov[23])?.*"
)

# "resnet50", "resnetv2_50x1_bit", "microsoft/resnet-50": BiTs are the ResNets here.
_RESNET = re.compile(r"(?:.*/)?resnet(?:v2)?[-_]?(\d+)(?:x(\d+))?(?:[-_.].*)?")


def model_meant(name: str) -> str | None:
    """The model here for one's name in timm or Hugging Face; for messages, none is accepted."""
    if resnet := _RESNET.fullmatch(name.lower()):
        return f"R{resnet[1]}x{resnet[2] or 1}"
    match = _NAME_OF_OTHERS.fullmatch(name.lower())
    if not match:
        return None
    size, patch, registers, style = match.groups(default="")
    suffix = style.replace("_", "-") + "-reg" * bool(registers and style)
    return f"ViT-{_SIZES[size]}/{patch}{suffix}"
