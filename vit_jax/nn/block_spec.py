"""The fields of an encoder block and of a stack of them, and the dtypes that layers compute in."""

import dataclasses

import jax.numpy as jnp

from vit_jax.core.schema.fields import ANY, COUNT, HIDDEN, IN_SHAPES, field
from vit_jax.nn.initialization import MAKERS, Initialization
from vit_jax.nn.kernels.choice import CHOICES
from vit_jax.nn.linear import Precision

DTYPES = ("float32", "bfloat16")
EPSILON = 1e-6  # layer norms, as in the released weights
# "layer": layer norm; "layer_no_bias": the same without a learned offset; "rms": not
# centred either (arXiv 1910.07467), as in ViT-22B (arXiv 2302.05442, section 2).
NORMS = ("layer", "layer_no_bias", "rms")
INITIALIZATIONS = ("vit", "big_vision", "deit")  # see nn/initialization.py
REMATS = ("none", "dots", "dots_no_batch", "full", "offload")  # see nn/stack.py


@dataclasses.dataclass(frozen=True, kw_only=True)
class Numerics:
    """The dtypes that layers compute in; parameters are float32."""

    dtype: str = field(
        "float32",
        "of the computation: `float32` [this] or `bfloat16`; parameters are float32",
        choices=DTYPES,
    )
    gradient_dtype: str | None = field(
        None,
        "in what kernels' gradients are summed over devices: `float32` or `bfloat16`, which sends "
        "half as much [what they are computed in: `dtype` in the blocks, float32 in the head]; "
        "microbatches (`optim.grad_accum_steps`) are always added in float32",
        choices=DTYPES,
    )

    @property
    def precision(self) -> Precision:
        """The dtypes of layers; a softmax computes in float32."""
        gradient = self.gradient_dtype and jnp.dtype(self.gradient_dtype)
        return Precision(jnp.dtype(self.dtype), jnp.dtype("float32"), gradient)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackSpec(Numerics):
    """How a stack of blocks is run: scanned (compiles one block), or unrolled (runs faster)."""

    scan: bool = field(
        False,
        "the blocks, or the units of a ResNet's stage, by one compiled loop (true) or unrolled "
        "[false]",
    )
    remat: str = field(
        "none",
        "what is computed again on the way back: `none` [this]: no matrix product, and in a scan "
        "the cheap operations between them; `dots`: those operations, and on a TPU the fused "
        "attention of fewer than 256 tokens, as in a scan; `dots_no_batch`: attention's "
        "products too; `full`: a whole block; `offload`: likewise, and the blocks' inputs wait in "
        "the host's memory, where the platform can do that",
        choices=REMATS,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockSpec(Numerics):
    """The fields of an encoder block."""

    width: int = field(doc="of the tokens, D", bounds=COUNT, trained=IN_SHAPES)
    mlp_dim: int = field(doc="hidden width of the MLPs", bounds=COUNT, trained=IN_SHAPES)
    num_heads: int = field(doc="of the attention", bounds=COUNT, trained=IN_SHAPES)
    mlp: str = field(
        "mlp",
        "`mlp` [this]; or gated, `swiglu` or `geglu`, with a third matrix; `mlp_dim` is then the "
        "width behind the gate",
        choices=("mlp", "swiglu", "geglu"),
        trained=HIDDEN,
    )
    gelu: str = field(
        "tanh", "`tanh` [this] or `exact`", choices=("tanh", "exact"), trained=HIDDEN, elsewhere=ANY
    )
    parallel: bool = field(
        False, "attention and MLP side by side behind one norm [false]", trained=IN_SHAPES
    )
    qk_norm: bool = field(
        False, "a norm over each head's queries and keys [false]", trained=IN_SHAPES
    )
    qkv_bias: str = field(
        "all",
        "which have a bias: `all` of query, key and value [this], `query_value`, or `none`",
        choices=("all", "query_value", "none"),  # DINOv3's key has none (arXiv 2508.10104)
        trained=IN_SHAPES,
        elsewhere={"huggingface": ("all", "none"), "timm": ("all", "none"), "google_npz": ("all",)},
    )
    dense_bias: bool = field(
        True,
        "whether attention's output and the dense layers of the MLP have one [true]",
        trained=IN_SHAPES,
    )
    norm: str = field(
        "layer",
        "`layer` [this], `layer_no_bias` without a learned offset, `rms`: not centred either",
        choices=NORMS,
        trained=HIDDEN,
    )
    norm_epsilon: float = field(
        EPSILON,
        "of these norms: what is added to the variance, 1e-6 [this]",
        bounds=(0, 1),
        trained=HIDDEN,
        elsewhere=ANY,
    )
    layer_scale: float = field(
        0.0,
        "initial value of LayerScale, a learned factor for each channel of a branch; 0: without "
        "[0]",
        bounds=(0, 1e3),
        trained=IN_SHAPES,
        elsewhere=ANY,
    )
    dropout: float = field(0.0, "rate [0]", bounds=(0, 1))
    initialization: str = field(
        "vit",
        "how parameters start: as in the code of the paper, `vit` [this], of `big_vision`, or of "
        "DeiT III, `deit`: see [variants](vit_variants.md#how-parameters-start)",
        choices=INITIALIZATIONS,
    )
    softmax_dtype: str = field(
        "float32",
        "in what attention's softmax and its sums are computed and kept: `float32` [this] or "
        "`bfloat16`, which moves less memory on a TPU",
        choices=DTYPES,
    )

    attention: str = field(
        "auto",
        "what computes attention: `xla`, JAX's compiler; `fused` or `splash`, kernels for TPUs; "
        "`cudnn`, for NVIDIA GPUs; or `auto`, by devices and model: see "
        "[variants](vit_variants.md#attention) [this]",
        choices=CHOICES,
    )

    @property
    def precision(self) -> Precision:
        """The dtypes of layers."""
        return dataclasses.replace(super().precision, softmax=jnp.dtype(self.softmax_dtype))

    @property
    def start(self) -> Initialization:
        """The initializers of the parameters."""
        return MAKERS[self.initialization](self.width)
