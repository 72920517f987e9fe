"""Writes docs/models.md: python -m vit_jax.models > docs/models.md"""

from __future__ import annotations

from collections.abc import Iterator

from vit_jax.models.names import available, info

HEAD = """# Models

`models.create(NAME, ...)` and `config.model.name` take these names, and any other patch size, such
as `ViT-Ti/4`. Every field may be overridden, such as `depth=4`. The sizes are from table 1 of arXiv
2010.11929, table 2 of 2106.04560, and from 2012.12877, 2106.10270 and 2305.13035.

The figures are for images of 224 x 224 pixels and 1000 classes. FLOPs are those of the matrix
products of one image's forward pass, a multiply-add counting 2. Activations are what the backward
pass finds in memory of one image in bfloat16, if nothing is computed again.
`python -m vit_jax.models` prints this page.

| name | parameters | GFLOPs | activations | stride | depth | width | MLP | heads | tokens |
|---|---|---|---|---|---|---|---|---|---|"""


def page() -> Iterator[str]:
    """The lines of docs/models.md."""
    yield HEAD
    for name in available():
        found = info(name)
        spec = found.spec
        cells = (
            name,
            f"{found.parameters / 1e6:,.1f} M",
            f"{found.forward_flops / 1e9:,.1f}",
            f"{found.activation_bytes / 1e6:,.1f} MB",
            found.stride,
            *(spec[field] for field in ("depth", "width", "mlp_dim", "heads")),
            found.tokens.num_tokens,
        )
        yield f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    print("\n".join(page()))
