"""A ViT's forward pass in float64 NumPy from its parameters by name, written from the papers.

It shares nothing with the package but the names of parameters and fields.
"""

import jax
import numpy as np
import scipy.special
from flax import nnx

from vit_jax.core import pytrees


def parameters(model):
    """float64 arrays by name."""
    named = pytrees.flatten(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    return {name: np.asarray(x, np.float64) for name, x in named.items()}


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def activation(kind, x):
    if kind == "silu":
        return x / (1 + np.exp(-x))
    if kind == "exact":
        return x * (1 + scipy.special.erf(x / np.sqrt(2))) / 2
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


class Forward:
    """forward(images) -> logits [B, C]; then `weights`, `outputs`, `last`, `read` have the rest.

    Attributes:
      weights: of each layer, [B, H, N, N].
      outputs: tokens after each block, [B, N, D]; last: after the last norm.
      read: of attention pooling, [B, H, N - registers].
      offsets: by layer, or "read": what is added to these weights.
    """

    def __init__(self, model):
        self.spec, self.model, self.params = model.spec, model, parameters(model)
        self.offsets = {}

    def __call__(self, images):
        spec, p = self.spec, self.params
        x = self.embedded(np.asarray(images, np.float64))
        self.weights, self.outputs = [], []
        for layer in range(spec.depth):
            own = {
                name.removeprefix("blocks/block/"): value[layer]
                for name, value in p.items()
                if name.startswith("blocks/block/")
            }
            # An Axial-ViT's block is two, whose tokens see only their row, or their column.
            for self.lines in ("row/", "column/") if "row/norm1/scale" in own else ("",):
                of_one = {
                    name.removeprefix(self.lines): value
                    for name, value in own.items()
                    if name.startswith(self.lines)
                }
                x = self.block(x, of_one, self.offsets.get(len(self.weights), 0.0))
                self.outputs.append(x)
        self.last = x = self.norm(x, p, "norm")
        first = spec.has_class_token + spec.distillation_token + spec.registers
        mean = x[:, first:].mean(axis=1)
        if spec.pool == "map":
            x = self.pooled(x[:, spec.registers :], p)
        else:
            x = {"cls": x[:, 0], "avg": mean, "cls_avg": np.concatenate([x[:, 0], mean], 1)}[
                spec.pool
            ]
        if spec.pre_logits:
            x = np.tanh(x @ p["pre_logits/kernel"] + p["pre_logits/bias"])
        logits = x @ p["head/kernel"] + p["head/bias"]
        if not spec.distillation_token:
            return logits
        own = self.last[:, 1] @ p["distillation_head/kernel"] + p["distillation_head/bias"]
        return (logits + own) / 2

    def embedded(self, images):
        """[B, H, W, 3] -> [B, N, D]"""
        spec, p = self.spec, self.params
        side, (batch, height, width, _) = spec.patch_size, images.shape
        self.grid = (height // side, width // side)
        if "patches/kernel" in p:
            cut = images.reshape(batch, self.grid[0], side, self.grid[1], side, 3)
            kernel = p["patches/kernel"].reshape(-1, spec.width)
            x = cut.transpose(0, 1, 3, 2, 4, 5).reshape(batch, -1, len(kernel)) @ kernel
            x = x + p["patches/bias"]
        else:  # a hybrid's ResNet is taken as it is
            tokens = jax.jit(self.model.patches)(images.astype(np.float32))
            x = np.asarray(tokens, np.float64)
        rows = [p["cls"][None]] if spec.has_class_token else []
        if spec.distillation_token:
            rows += [(p["distillation_token"] + p["distillation_position"])[None]]
        rows += [p["registers"]] if spec.registers else []
        rows = [np.broadcast_to(r, (batch, *r.shape)) for r in rows]
        x = np.concatenate([*rows, x], axis=1)
        added = spec.position_place == "input" or spec.absolute_positions
        return x + self.table(p, x) if added else x

    def table(self, p, x):
        """[N, D]: learned positions that are added."""
        spec, n = self.spec, x.shape[1]
        table, patches = np.zeros((n, spec.width)), np.prod(self.grid)
        if spec.position_embedding == "learned_1d" or spec.absolute_positions:
            found = p["positions/embedding"]
            if len(found) > patches:
                table[0] = found[0]
            table[n - patches :] = found[-patches:]
        if spec.position_embedding == "learned_2d":
            row, column = np.divmod(np.arange(patches), self.grid[1])
            halves = [p["positions/columns"][column], p["positions/rows"][row]]
            table[n - patches :] = np.concatenate(halves, axis=1)
        return table

    def norm(self, x, p, name):
        if self.spec.norm != "rms":
            x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + self.spec.norm_epsilon)
        return x * p[f"{name}/scale"] + p.get(f"{name}/bias", 0.0)

    def block(self, x, own, offset):
        spec = self.spec
        p = own if spec.position_place == "layers" else self.params | own
        if spec.position_place != "input" and not spec.absolute_positions:
            x = x + self.table(p, x)
        normed = self.norm(x, p, "norm1")
        y = self.attention(normed, p, offset) * p.get("scale1/scale", 1.0)
        x = x + y
        inside = normed if spec.parallel else self.norm(x, p, "norm2")
        return x + self.mlp(inside, p, "mlp", spec.mlp) * p.get("scale2/scale", 1.0)

    def mlp(self, x, p, name, kind):
        dense = lambda x, which: x @ p[f"{name}/{which}/kernel"] + p.get(f"{name}/{which}/bias", 0)
        hidden = dense(x, "fc1")
        if kind == "mlp":
            hidden = activation(self.spec.gelu, hidden)
        else:
            gate = dense(x, "gate")
            hidden = hidden * activation("silu" if kind == "swiglu" else self.spec.gelu, gate)
        if f"{name}/norm/scale" in p:
            hidden = self.norm(hidden, p, f"{name}/norm")
        return dense(hidden, "fc2")

    def attention(self, x, p, offset):
        spec = self.spec
        qkv = np.einsum("bnd,dihk->ibhnk", x, p["attention/qkv/kernel"])
        if "attention/qkv/bias" in p:
            qkv = qkv + p["attention/qkv/bias"][:, None, :, None]
        query, key, value = qkv
        query = query + p.get("attention/query_bias", np.zeros(1))[..., None, :]
        value = value + p.get("attention/value_bias", np.zeros(1))[..., None, :]
        self.first_value = self.first_value if self.weights else value
        share = p.get("attention/value_residual/share", 0.0)
        value = (1 - share) * value + share * self.first_value
        if spec.qk_norm:
            query = self.norm(query, p, "attention/query_norm")
            key = self.norm(key, p, "attention/key_norm")
        if spec.position_embedding.startswith("rotary"):
            query, key = self.rotated(query, p), self.rotated(key, p)
        n, size = query.shape[-2:]
        logits = query @ np.swapaxes(key, -1, -2) / np.sqrt(size)
        if spec.position_embedding == "relative":
            apart = (
                np.arange(n)[:, None] - np.arange(n) + n - 1
            )  # the query's place minus the key's
            offsets = p["positions/offsets"][apart]
            logits = logits + np.einsum("bhqk,qsk->bhqs", query, offsets) / np.sqrt(size)
        if self.lines:
            place = np.divmod(np.arange(n), self.grid[1])[self.lines == "column/"]
            logits = np.where(place[:, None] == place, logits, -np.inf)
        self.weights.append(softmax(logits))
        mixed = (self.weights[-1] + offset) @ value
        bias = p.get("attention/out/bias", 0.0)
        if "attention/norm/scale" in p:
            side_by_side = np.moveaxis(mixed, 1, 2)
            normed = self.norm(side_by_side.reshape(-1, n, spec.width), p, "attention/norm")
            mixed = np.moveaxis(normed.reshape(side_by_side.shape), 2, 1)
        return np.einsum("bhnk,hkd->bnd", mixed, p["attention/out/kernel"]) + bias

    def rotated(self, x, p):
        """Pairs of a patch's channels as complex numbers, turned by row and by column."""
        spec, (rows, columns), size = self.spec, self.grid, x.shape[-1]
        first = x.shape[-2] - rows * columns
        y, c = np.divmod(np.arange(rows * columns), columns)
        speeds = spec.rotary_base ** (-4 * np.arange(size // 4) / size)
        where = [2 * np.pi * ((2 * y + 1) / rows - 1), 2 * np.pi * ((2 * c + 1) / columns - 1)]
        if spec.position_embedding == "rotary_axial":
            stretch = [(spec.rotary_grid or n) / n for n in self.grid]
            where = [(i + spec.rotary_offset) * s for i, s in zip((y, c), stretch, strict=True)]
            where = where[:: -1 if spec.rotary_columns_first else 1]
        angles = np.concatenate([np.outer(one, speeds) for one in where], axis=1)
        if spec.position_embedding == "rotary_mixed":
            by_column, by_row = p["frequencies"]
            angles = np.einsum("n,hj->hnj", c, by_column) + np.einsum("n,hj->hnj", y, by_row)
        turn = np.exp(1j * angles)
        turn = np.concatenate([np.ones((*turn.shape[:-2], first, size // 2)), turn], axis=-2)
        if spec.position_embedding == "rotary_2d":
            turned = (x[..., : size // 2] + 1j * x[..., size // 2 :]) * turn
            return np.concatenate([turned.real, turned.imag], axis=-1)
        turned = (x[..., ::2] + 1j * x[..., 1::2]) * turn
        return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)

    def pooled(self, x, p):
        query = np.einsum("d,dihk->hk", p["pooling/probe"], p["pooling/query/kernel"])
        query = query + p["pooling/query/bias"][0]
        both = np.einsum("bnd,dihk->ibhnk", x, p["pooling/key_value/kernel"])
        key, value = both + p["pooling/key_value/bias"][:, None, :, None]
        logits = np.einsum("hk,bhnk->bhn", query, key) / np.sqrt(query.shape[-1])
        self.read = softmax(logits)
        mixed = np.einsum("bhn,bhnk->bhk", self.read + self.offsets.get("read", 0.0), value)
        x = np.einsum("bhk,hkd->bd", mixed, p["pooling/out/kernel"]) + p["pooling/out/bias"]
        return x + self.mlp(self.norm(x, p, "pooling/norm"), p, "pooling/mlp", "mlp")
