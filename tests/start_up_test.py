"""What importing parts of the package does not import."""


def test_modules_are_attributes_of_the_package(run_python):
    """As pages and messages name them; they are imported with their first use."""
    code = (
        "import sys, vit_jax; assert not {'jax', 'tensorflow'}.intersection(sys.modules)\n"
        "from vit_jax import models, weights; weights.load, weights.save\n"
        "assert 'flax' in sys.modules\n"
        # Weights of other projects are read without Orbax.
        "unneeded = {'orbax', 'tensorstore', 'tensorflow', 'PIL'}.intersection(sys.modules)\n"
        "vit_jax.models.create, vit_jax.predict.Predictor, vit_jax.models.images.load\n"
        "vit_jax.train.train, vit_jax.weights.load, vit_jax.evaluate\n"
        "print(unneeded, hasattr(vit_jax, 'nothing'), hasattr(vit_jax.models, 'nothing'))"
    )
    done = run_python("-c", code, fresh=True)
    assert done.stdout == "set() False False\n", done.stderr


def test_a_training_imports_only_what_its_config_names(run_python, tmp_path):
    """And an evaluation, beside it, nothing that pages and probes need."""
    code = (
        "import sys; from etils import epath; from vit_jax import config, train\n"
        "from vit_jax.run.build import Run\n"
        "Run.build(config.load('vit_digits'), epath.Path(sys.argv[1]))\n"
        "print(*sorted(sys.modules)); from vit_jax.evaluate import __main__\n"
        "print({'matplotlib', 'scipy.optimize', 'scipy.special'}.intersection(sys.modules))"
    )
    lines = run_python("-c", code, str(tmp_path), fresh=True).stdout.splitlines()
    *_, imported, of_pages = [*lines[:-2], lines[-2].split(), lines[-1]]
    assert of_pages == "set()"
    assert {"vit_jax.evals.classification", "vit_jax.data.ops.decode"} <= set(imported)
    unnamed = (
        "vit_jax.weights.loading", "vit_jax.weights.online", "vit_jax.weights.formats",
        "vit_jax.learning.methods.", "vit_jax.learning.optim.patterns", "vit_jax.learning.teacher",
        "vit_jax.evals.frozen", "vit_jax.evals.pictures", "vit_jax.data.files", "vit_jax.data.in_",
        "vit_jax.data.maps", "vit_jax.data.mixtures", "vit_jax.data.sources.tfds",
        "vit_jax.data.sources.image", "vit_jax.data.sources.split_names", "vit_jax.data.ops.auto",
        "vit_jax.data.ops.augmentations", "vit_jax.data.ops.crops", "vit_jax.data.ops.device",
        "vit_jax.models.activations", "vit_jax.models.dense", "vit_jax.models.observe",
        "vit_jax.models.layers.relative", "vit_jax.models.layers.resized",
        "vit_jax.models.layers.rotary", "vit_jax.data.sources.joined", "vit_jax.probes",
        "vit_jax.store.runs",
    )  # fmt: skip
    assert [name for name in imported if name.startswith(unnamed)] == []
