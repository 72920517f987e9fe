"""Low-rank adapters against Hugging Face's peft, on a small ViT: logits, gradients, one update.

Needs `pip install peft accelerate` besides the extra `parity`; skipped without them.
"""

import jax
import numpy as np
import pytest
from flax import nnx

from tests.conftest import TINY_RUN
from vit_jax import config as configs
from vit_jax.core import pytrees
from vit_jax.core.screen import Screen
from vit_jax.learning.step import make_loss_and_grads, make_update
from vit_jax.run.parts import inputs, networks, updates
from vit_jax.run.parts.warm_start import initial_state

RANK, ALPHA, LR = 3, 5.0, 0.1
SAME_MATH = 1e-5  # of an array's largest number: float32 sums in another order
LAYERS, HEADS, HEAD_SIZE, WIDTH, MLP = 2, 2, 8, 16, 24
TARGETS = {
    "blocks/.*/kernel": ["q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2"],
    "blocks/.*/attention/(query|value)/kernel": ["q_proj", "v_proj"],
}
# Our dense layers, and theirs with the shapes of factors there and here: A [*in, R], B [R, *out].
LAYERS_OF = {
    "attention/qkv": ("attention.{}_proj", (WIDTH,), (HEADS, HEAD_SIZE)),
    "attention/out": ("attention.o_proj", (HEADS, HEAD_SIZE), (WIDTH,)),
    "mlp/fc1": ("mlp.fc1", (WIDTH,), (MLP,)),
    "mlp/fc2": ("mlp.fc2", (MLP,), (WIDTH,)),
}

pytestmark = pytest.mark.outside


def adapted(folder, targets):
    """peft's model with random factors; its weights without them are in the folder."""
    torch, peft, hf = map(pytest.importorskip, ("torch", "peft", "transformers"))
    torch.manual_seed(0)
    sizes = {
        "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "intermediate_size": MLP, "image_size": 8, "patch_size": 4, "num_labels": 4,
    }  # fmt: skip
    plain = hf.ViTForImageClassification(hf.ViTConfig(**sizes)).eval()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.normal_(0, 0.3)
    plain.save_pretrained(folder)
    lora = peft.LoraConfig(
        r=RANK, lora_alpha=ALPHA, target_modules=targets, modules_to_save=["classifier"]
    )
    model = peft.get_peft_model(plain, lora).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, 0.3)
    return model


def in_our_words(arrays):
    """Their adapters and head, or gradients of them, by our names; zeros for absent projections."""
    found = {}
    of = "base_model.model.vit.layers.{}.{}.lora_{}.default.weight"
    head = "base_model.model.classifier.modules_to_save.default.{}"
    for ours, (theirs, ins, outs) in LAYERS_OF.items():
        several = [theirs.format(letter) for letter in "qkv"] if "{}" in theirs else [theirs]
        for letter in "AB":
            shape = (*ins, RANK) if letter == "A" else (RANK, *outs)
            names = [[of.format(i, name, letter) for name in several] for i in range(LAYERS)]
            zeros = np.zeros((RANK, WIDTH) if letter == "A" else (WIDTH, RANK), np.float32)
            if not any(name in arrays for name in names[0]):
                continue
            stacked = [[arrays.get(n, zeros).T.reshape(shape) for n in layer] for layer in names]
            place = 2 if letter == "A" else 1  # of projections: [L, D, n, R] and [L, n, R, H, K]
            x = np.moveaxis(np.array(stacked), 1, place)
            one = x if len(several) > 1 else x.squeeze(place)
            found[f"blocks/block/{ours}/lora_{letter.lower()}"] = one
    found["head/kernel"] = arrays[head.format("weight")].T
    return found | {"head/bias": arrays[head.format("bias")]}


def close(ours, theirs):
    assert np.abs(np.asarray(ours) - theirs).max() <= SAME_MATH * np.abs(theirs).max()


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("kernels", TARGETS)
def test_logits_gradients_and_an_update_are_those_of_peft(kernels, scan, tmp_path):
    model = adapted(tmp_path, TARGETS[kernels])
    torch = pytest.importorskip("torch")
    config = configs.resolve(
        TINY_RUN | {"model": {"name": None, "scan": scan, "dtype": "float32"}},
        [
            f"init.weights={tmp_path}", f"lora.kernels={kernels}", f"lora.rank={RANK}",
            f"lora.alpha={ALPHA}", f"optim.lr={LR}", "optim.schedule=constant", "optim.name=sgd",
            "optim.warmup_steps=0", "optim.momentum=0", "optim.grad_clip_norm=none",
        ],
    )  # fmt: skip
    mesh = inputs.mesh(config.mesh)
    parts = updates.step_parts(config, mesh, num_examples=64, num_classes=4)
    trained = networks.trained_weights(config.init)
    state = initial_state(config, parts.layout, parts.model.info, trained, Screen(quiet=True))
    named = {name: x.detach().numpy().copy() for name, x in model.named_parameters()}
    before = in_our_words(named)
    own = pytrees.flatten(state.params)
    assert set(before) == {n for n in own if pytrees.is_adapter(n) or n.startswith("head/")}
    assert all(own[name].shape == x.shape for name, x in before.items())
    state = state._replace(params=pytrees.unflatten(own | jax.tree.map(jax.numpy.asarray, before)))

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (16, 8, 8, 3), np.uint8)
    labels = rng.integers(0, 4, (16, 1), np.int32)
    batch = {"image": images, "labels": labels, "weight": np.ones(16, np.float32)}
    pixels = torch.tensor((images / 255 - 0.5) / 0.5, dtype=torch.float32).permute(0, 3, 1, 2)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=LR)
    logits = model(pixel_values=pixels).logits
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(labels[:, 0], dtype=torch.long))
    loss.backward()

    with jax.set_mesh(mesh):
        found = jax.jit(make_loss_and_grads(parts.layout, parts.objective, seed=0))(state, batch)
        update = make_update(parts.layout, parts.objective, lambda *_: {}, 0)
        after = pytrees.flatten(jax.jit(update)(state, batch)[0].params)
        predicted = nnx.merge(parts.layout.graph, state.params)(parts.objective.inputs(batch)[0])
    close(predicted, logits.detach().numpy())
    close(found.loss, loss.item())
    grads = pytrees.flatten(found.grads)
    expected = in_our_words(
        {n: p.grad.numpy() for n, p in model.named_parameters() if p.requires_grad}
    )
    for name, x in expected.items():
        close(grads[name], x)
    optimizer.step()
    for name, x in in_our_words(
        {n: p.detach().numpy() for n, p in model.named_parameters()}
    ).items():
        close(after[name], x)
    assert all((after[n] == x).all() for n, x in own.items() if n not in expected)
