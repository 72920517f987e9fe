"""Lists all models, as the last table of docs/models.md: vit-jax models

The figures are for images of 224 x 224 pixels and 1000 classes; that page says what they count.
"""

from collections.abc import Iterator

from vit_jax.core import command
from vit_jax.core.screen import format_bytes
from vit_jax.models.names import available, info
from vit_jax.models.names import spec as spec_of

HEAD = """\
| name | parameters | GFLOPs | activations | stride | units | depth | width | MLP | heads | tokens |
|---|---|---|---|---|---|---|---|---|---|---|"""
FIELDS = ("depth", "width", "mlp_dim", "num_heads")


def table() -> Iterator[str]:
    """Its lines."""
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
    print("\n".join(table()))


if __name__ == "__main__":
    command.run(main)
