"""A Hugging Face ViT is imported, learns images here and is exported; transformers agrees."""

import json

import numpy as np
import pytest
from PIL import Image

from vit_jax import config as configs
from vit_jax.convert import convert
from vit_jax.predict import Predictor
from vit_jax.train import train

pytestmark = pytest.mark.parity
MISSING = "the extra `parity` is not installed, see docs/install.md"
PROBABILITY = 1e-4  # the same pixels; float32 in another order
CLASSES = ("ant", "bee", "cat", "dog")
IMAGES = 32


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason=MISSING)


@pytest.fixture(scope="module")
def hf(torch):
    transformers = pytest.importorskip("transformers", reason=MISSING)
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    return transformers


@pytest.fixture
def folder(tmp_path):
    """32 random blots, which can only be memorised."""
    rng = np.random.default_rng(0)
    for number in range(IMAGES):
        file = tmp_path / "images" / "train" / CLASSES[number % 4] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
        small.resize((20, 24), Image.Resampling.BICUBIC).save(file)
    return tmp_path / "images"


@pytest.mark.slow
@pytest.mark.parametrize("through", ["huggingface", "google_npz"])
def test_fine_tuned_and_exported(hf, torch, folder, tmp_path, through):
    theirs = hf.ViTForImageClassification(
        hf.ViTConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
            image_size=8, patch_size=4, hidden_act="gelu_pytorch_tanh", layer_norm_eps=1e-6,
        )
    )  # fmt: skip
    theirs.save_pretrained(tmp_path / "hf")
    start = tmp_path / "hf"
    if through != "huggingface":
        start = tmp_path / "start.npz"
        convert(str(tmp_path / "hf"), str(start), to=through)
    config = configs.load(
        "configs/finetune.py",
        [
            f"init.weights={start}", f"input.data_dir={folder}", "model.dtype=float32",
            "input.preprocess=decode|resize(16)", f"input.batch_size={IMAGES}", "total.steps=200",
            "evals.val.preprocess=decode|resize(16)", "evals.val.split=train",
            "evals.val.every_steps=none", "optim.name=adam", "optim.lr=3e-3",
            "optim.warmup_steps=5", "log.tensorboard=false",
        ],
    )  # fmt: skip
    train(config, tmp_path / "run")
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["val/accuracy"], last["val/examples"]) == (1.0, IMAGES)

    convert(str(tmp_path / "run"), str(tmp_path / "out"), to="huggingface")
    model = hf.AutoModelForImageClassification.from_pretrained(tmp_path / "out").eval()
    processor = hf.AutoImageProcessor.from_pretrained(tmp_path / "out", use_fast=False)
    assert model.config.id2label == dict(enumerate(CLASSES))
    predictions = list(Predictor(str(tmp_path / "run"))([folder], top_k=len(CLASSES)))
    assert len(predictions) == IMAGES
    for file, classes in predictions:
        pixels = processor(Image.open(file), return_tensors="pt")["pixel_values"]
        with torch.no_grad():
            probabilities = model(pixels).logits.softmax(-1)[0].numpy()
        assert classes[0]["name"] == CLASSES[probabilities.argmax()] == file.parent.name
        for c in classes:
            assert abs(probabilities[c["class"]] - c["probability"]) <= PROBABILITY
