"""timm's EfficientNets: tf_efficientnet_b0 and so on, and efficientnet_b0, which PyTorch trained.

They have the same arrays: the architecture's name says which padding and epsilon they are for.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from vit_jax import models
from vit_jax.core.errors import UserError
from vit_jax.core.pytrees import RUNNING_MEAN, RUNNING_VARIANCE
from vit_jax.models.efficientnet import SIZES, EfficientNetSpec, with_sizes
from vit_jax.nn.efficientnet.spec import SQUEEZE, STAGES
from vit_jax.weights import config_json
from vit_jax.weights.config_json import ClassNames
from vit_jax.weights.external import Documents, ExternalWeights, Format, Given
from vit_jax.weights.files.detect_format import Opened
from vit_jax.weights.formats import timm
from vit_jax.weights.layout import Layout, Rule, torch_linear
from vit_jax.weights.match import Match, best

_NORM = {"scale": "weight", "bias": "bias", RUNNING_MEAN: "running_mean"}
_NORM |= {RUNNING_VARIANCE: "running_var"}
_UNIT = {
    "expand": "conv_pw", "norm1": "bn1", "depthwise": "conv_dw", "norm2": "bn2",
    "squeeze": "se.conv_reduce", "excite": "se.conv_expand", "project": "conv_pwl", "norm3": "bn3",
}  # fmt: skip
# Without an expansion: a convolution and a norm less, and others have their names.
_NARROW = _UNIT | {"norm2": "bn1", "project": "conv_pw", "norm3": "bn2"}
_ARCHITECTURE = re.compile(r"(?P<tf>tf_)?efficientnet_(b[0-8]|l2)(_(ap|ns|ns_475))?")
_PADDINGS = {"same": "same", "": "symmetric"}
_EPSILONS = {"same": 1e-3, "symmetric": 1e-5}  # the default of an architecture with this padding
# Arguments with which an architecture is another one.
_UNREAD = ("act_layer", "norm_layer", "se_layer", "aa_layer", "group_size", "round_chs_fn")

# --- the table


def _norm(ours: str, theirs: str, axis: str, layers: str = "", start: int = 0) -> Iterator[Rule]:
    own = f"{layers} {axis}".strip()
    for leaf, there in _NORM.items():
        yield Rule(f"{ours}/{leaf}", (f"{theirs}.{there}",), axis, start, own)


def _unit(number: int, part: str) -> Iterator[Rule]:
    """The rules of the first unit, or of the rest, of a stage, numbered from 1.

    Letters: C0 and C1 to C7 channels behind root and stages, U1 to U7 units of the rests, Q1 to Q7
    and R1 to R7 what first units and rests squeeze to.
    """
    stage = STAGES[number - 1]
    first = part == "first"
    before, after = f"C{number - 1 if first else number}", f"C{number}"
    squeezed, layers = f"{'Q' if first else 'R'}{number}", "1" if first else f"U{number}"
    wide = stage.expansion > 1
    hidden = f"{stage.expansion}{before}" if wide else before
    names = _UNIT if wide else _NARROW
    folder = f"blocks.{number - 1}.{'0' if first else '{}'}."
    k = stage.kernel_size
    start = 0 if first else 1

    def dense(name: str, inputs: str, outputs: str, bias: bool = False) -> Iterator[Rule]:
        outputs = f"{outputs}'" if outputs == inputs else outputs
        ours, theirs = f"{here}/{name}", folder + names[name]
        own = f"{layers} {inputs} {outputs}"
        yield Rule(f"{ours}/kernel", (f"{theirs}.weight",), f"{outputs} {inputs} 1 1", start, own)
        if bias:
            yield Rule(f"{ours}/bias", (f"{theirs}.bias",), outputs, start, f"{layers} {outputs}")

    here = f"stage{number}/{part}/block"
    if wide:
        yield from dense("expand", before, hidden)
        yield from _norm(f"{here}/norm1", folder + names["norm1"], hidden, layers, start)
    depthwise = folder + names["depthwise"] + ".weight"
    axes, own = f"{hidden} 1 {k} {k}'", f"{layers} {k} {k}' {hidden}"
    yield Rule(f"{here}/depthwise/kernel", (depthwise,), axes, start, own)
    yield from _norm(f"{here}/norm2", folder + names["norm2"], hidden, layers, start)
    yield from dense("squeeze", hidden, squeezed, bias=True)
    yield from dense("excite", squeezed, hidden, bias=True)
    yield from dense("project", hidden, after)
    yield from _norm(f"{here}/norm3", folder + names["norm3"], after, layers, start)


_LAYOUT = Layout(
    title="timm's EfficientNet",
    rules=(
        Rule("root/conv/kernel", ("conv_stem.weight",), "C0 3'' 3 3'", own="3 3' 3'' C0"),
        *_norm("root/norm", "bn1", "C0"),
        *(r for i, _ in enumerate(STAGES, 1) for part in ("first", "rest") for r in _unit(i, part)),
        Rule("top/conv/kernel", ("conv_head.weight",), "D C7 1 1", own="C7 D"),
        *_norm("top/norm", "bn2", "D"),
        *torch_linear("head", "classifier", "C D", "C"),
    ),
    ignored=(r".*\.num_batches_tracked",),
    needed=tuple(f"stage{i}/first" for i in range(1, len(STAGES) + 1)),
)

# --- reading


def _read(opened: Opened, given: Given) -> ExternalWeights:
    match = best([_LAYOUT], opened.tensors)
    config = opened.config or {}
    sizes = match.sizes
    stated = dict.fromkeys(("num_classes", "model_args.num_classes"), sizes.get("C", 0))
    stated |= {"num_features": sizes["D"], "model_args.in_chans": config_json.RGB}
    config_json.check_sizes(opened, stated)
    name = _name(opened, match)
    fields = _fields(config)
    usual = SIZES.get(name.removeprefix("EfficientNet-"), SIZES["B0"]).image_size_px
    known_size = timm.stated_image_size(config) or given.image_size
    return ExternalWeights(
        name=name,
        spec=models.spec(name, **fields),
        num_classes=sizes.get("C", 0),
        class_names=timm.class_names(config, sizes.get("C", 0)),
        preprocess=timm.preprocess(config, known_size or (usual, usual)),
        match=match,
        pads_class_position=False,
        assumed=(
            *_assumed(config),
            *(() if known_size else ("image_size",)),
            *timm.assumed_of_images(config),
        ),
    )


def _name(opened: Opened, match: Match) -> str:
    """The name of a model with these sizes. UserError if none has them."""
    sizes, stages = match.sizes, range(1, len(STAGES) + 1)
    units = [1 + (sizes[f"U{i}"] if match.has(f"stage{i}/rest") else 0) for i in stages]
    channels = [sizes[f"C{i}"] for i in (0, *stages)]
    squeezed = [sizes[f"Q{i}"] for i in stages]
    squeezed += [sizes[f"R{i}"] for i in stages if match.has(f"stage{i}/rest")]
    from_inputs = channels[:-1] + [channels[i] for i in stages if match.has(f"stage{i}/rest")]
    name = with_sizes(units, channels, sizes["D"])
    if name is None or squeezed != [max(1, inputs // SQUEEZE) for inputs in from_inputs]:
        raise UserError(
            f"{opened.path} has stages of {', '.join(map(str, units))} units and "
            f"{', '.join(map(str, channels[1:]))} channels, squeezed to "
            f"{', '.join(map(str, squeezed))}: not those of EfficientNet-B0 times coefficients of "
            "width and depth, which are all that can be read here."
        )
    return name


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Padding and epsilon. UserError for arguments that make another model of the same arrays."""
    architecture = str(config.get("architecture", "tf_efficientnet_b0"))
    arguments = config_json.section(config, "model_args")
    known = _ARCHITECTURE.fullmatch(architecture.partition(".")[0])
    unknown = [f"{name}={arguments[name]!r}" for name in _UNREAD if arguments.get(name) is not None]
    pool = arguments.get("global_pool") or config.get("global_pool") or "avg"
    if not known:
        unknown.append(f"architecture={architecture!r}")
    if pool != "avg":
        unknown.append(f"global_pool={pool!r}")
    if not known or unknown:
        raise UserError(f"config.json: {', '.join(unknown)} cannot be computed here.")
    default = "same" if known["tf"] else ""
    stated = arguments.get("pad_type")  # "" has a meaning
    word = stated if stated == "" else config_json.word(arguments, "pad_type", default, _PADDINGS)
    usual = _EPSILONS[_PADDINGS[default]]
    return {
        "padding": _PADDINGS[word],
        "batch_norm_epsilon": config_json.positive(arguments, "bn_eps", usual),
    }


def _assumed(config: Mapping[str, Any]) -> list[str]:
    """Fields of the model that neither the architecture nor an argument states."""
    arguments = config_json.section(config, "model_args")
    of_name = {"padding": "pad_type", "batch_norm_epsilon": "bn_eps"}
    unstated = [field for field, its in of_name.items() if arguments.get(its) is None]
    return [] if "architecture" in config else unstated


# --- writing


def _documents(
    spec: EfficientNetSpec, num_classes: int, names: ClassNames, about: models.Preprocess
) -> Documents:
    name = with_sizes(spec.units, spec.channels, spec.map_channels) or ""
    size = name.removeprefix("EfficientNet-")
    if size not in SIZES:
        raise UserError(
            f"timm has no EfficientNet with model.width_coefficient={spec.width_coefficient:g} and "
            f"model.depth_coefficient={spec.depth_coefficient:g}, but {', '.join(SIZES)}: write "
            "--to=checkpoint."
        )
    prefix = "tf_" if spec.padding == "same" else ""
    config: dict[str, Any] = {
        "architecture": f"{prefix}efficientnet_{size.lower()}",
        "num_classes": num_classes,
        "num_features": spec.map_channels,
        "global_pool": "avg",
        "pretrained_cfg": timm.pretrained_cfg(num_classes, about)
        | {"fixed_input_size": False, "first_conv": "conv_stem", "classifier": "classifier"},
    }
    if spec.batch_norm_epsilon != _EPSILONS[spec.padding]:
        config["model_args"] = {"bn_eps": spec.batch_norm_epsilon}
    if names:
        config["label_names"] = list(names)
    return {"config.json": config}


FORMAT = Format(
    destination="timm",
    reads=_read,
    holds=lambda spec, _: isinstance(spec, EfficientNetSpec),
    layout_for=lambda _: _LAYOUT,
    documents=_documents,
    hint="Write --to=checkpoint.",
)
