"""Prints the table of all models: vit-jax models > docs/models.md"""

from collections.abc import Iterator

from vit_jax.core import command
from vit_jax.core.screen import format_bytes
from vit_jax.models.names import available, info
from vit_jax.models.names import spec as spec_of

HEAD = """# Models

`models.create(NAME, ...)` and `config.model.name` take these names and others of their form: any
other patch size, such as `ViT-Ti/4`; any width factor, such as `R101x2`; hybrids of `R`, `R26`,
`R50`, `R101`, `R152` or `R200` and any ViT, such as `R101+ViT-H/32`; any coefficients of width and
depth, such as `EfficientNet-0.5x1.2`. Every field may be overridden, such as `depth=4`. The sizes
are from table 1 of arXiv 2010.11929, table 2 of 2106.04560, and from 2012.12877, 2106.10270 and
2305.13035; of the ResNets from 1912.11370, of the hybrids from section 3.1 of 2010.11929 and from
2106.10270, of the axial models from appendix D.6 of 2010.11929; of the EfficientNets from
1905.11946 and 1911.04252.

- **ViT** ([vit.py](../vit_jax/models/vit.py)): patches, class token, position embedding, blocks. It
  has [many fields](vit_variants.md); a backbone such as `ViT-B/14-dinov2` is a choice of them.
- **BiT** ([bit.py](../vit_jax/models/bit.py)), `R50x1`: a ResNet with norm and relu before each
  convolution. `model.units` are the units of each stage, `model.root_width` the channels behind the
  first convolution, 64 x the width factor. Images may have any size.
- **Hybrids** ([hybrid.py](../vit_jax/models/hybrid.py)), `R50+ViT-B/16`: a ViT on the feature map
  of a ResNet with norm and relu behind each convolution. They have the fields of both.
- **Axial-ViT** ([axial.py](../vit_jax/models/axial.py)), `Axial-ViT-B/16`: a ViT without
  class token, each of whose blocks is [two](vit_variants.md#axial-attention): attention along rows
  and an MLP, attention along columns and an MLP.
- **AxialResNet** ([axial.py](../vit_jax/models/axial.py)), `AxialResNet-50`: a ResNet
  as a hybrid's, with axial attention for its convolutions of 3 x 3. It has the fields of a BiT, and
  `model.num_heads`.
- **EfficientNets** ([efficientnet.py](../vit_jax/models/efficientnet.py)), `EfficientNet-B0`:
  inverted bottlenecks with squeeze-and-excitation, swish and batch norm, the students and teachers
  of [Noisy Student](https://arxiv.org/abs/1911.04252). All are B0 with other coefficients.

All ResNets have group norms of 32 groups and convolutions whose weights are standardised when they
are used, with the paddings and small constants of the code that their released weights come from,
or of published code where there are none. A field that a model does not have is refused.

Beside images of its own size `model(images)` takes any with BiTs and EfficientNets; of a ViT or a
hybrid any that patches divide if it has `position_embedding=none`, and with `crop_to_patches` those
with as many whole patches; of an AxialResNet those whose feature maps are as large; no others.

## EfficientNets

| | B0 | B1 | B2 | B3 | B4 | B5 | B6 | B7 | L2 |
|---|---|---|---|---|---|---|---|---|---|
| `model.width_coefficient` | 1.0 | 1.0 | 1.1 | 1.2 | 1.4 | 1.6 | 1.8 | 2.0 | 4.3 |
| `model.depth_coefficient` | 1.0 | 1.1 | 1.2 | 1.4 | 1.8 | 2.2 | 2.6 | 3.1 | 5.3 |
| `model.dropout` | 0.2 | 0.2 | 0.3 | 0.3 | 0.4 | 0.4 | 0.5 | 0.5 | 0.5 |
| published image size | 224 | 240 | 260 | 300 | 380 | 456 | 528 | 600 | 800 |

The name does not set the image size: `input.preprocess` does, and any will do. `model.padding` and
`model.batch_norm_epsilon` are those of the published weights; weights that were trained in PyTorch,
timm's `efficientnet_b0` and so on, have `symmetric` and 1e-5. `model.stochastic_depth` is 0.2.

A batch norm takes mean and variance of the whole batch, over all devices and hosts, so the numbers
depend on the mesh only by rounding. For evaluation it keeps running ones: `batch_norm_momentum` of
the old and the rest of the batch's. They are saved among the parameters, as `running_mean` and
`running_variance`, and their EMA is evaluated with that of the parameters. No optimizer moves them,
and no gradient's norm counts them. Images that `input.on_bad_image=skip` leaves out are black in
their batch, and count in its mean and variance.

In bfloat16 moments are still computed in float32. A batch norm magnifies the rounding of what it
normalises the more, the fewer positions it sees: where the last map of a whole batch has 16 of
them, as at the toy size of [training_test.py](../tests/models/training_test.py), 8 devices differ
from one by 3 % of the loss in bfloat16, and agree in float32 to 2e-4.

In microbatches (`optim.grad_accum_steps`) there is no whole batch, so they are refused. With
`model.frozen_statistics=true` training too uses the running moments, and keeps them: this goes with
microbatches, small batches, and adapters (`lora.kernels`).

## All models

The figures are for images of 224 x 224 pixels and 1000 classes. FLOPs are those of the matrix
products and convolutions of one image's forward pass, a multiply-add counting 2; products with the
zeros around an image are not counted. Activations are what the backward pass finds in memory of one
image in bfloat16, if nothing is computed again. `vit-jax models` prints this page.

| name | parameters | GFLOPs | activations | stride | units | depth | width | MLP | heads | tokens |
|---|---|---|---|---|---|---|---|---|---|---|"""
FIELDS = ("depth", "width", "mlp_dim", "num_heads")


def page() -> Iterator[str]:
    """The lines of docs/models.md."""
    yield HEAD
    for name in available():
        figures = info(name)
        spec = figures.spec
        cells = (
            name,
            f"{figures.parameters / 1e6:,.1f} M",
            f"{figures.forward_flops / 1e9:,.1f}",
            format_bytes(figures.activation_bytes),
            figures.stride,
            ", ".join(map(str, getattr(spec_of(name), "units", ()))),
            *(spec.get(field, "") for field in FIELDS),
            figures.tokens.num_tokens,
        )
        yield f"| {' | '.join(map(str, cells))} |"


def main(_: list[str]) -> None:
    """The command."""
    print("\n".join(page()))


if __name__ == "__main__":
    command.run(main)
