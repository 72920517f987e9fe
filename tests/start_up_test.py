"""What importing parts of the package does not import."""


def test_weights_of_other_projects_are_read_without_orbax(run_python):
    code = (
        "from vit_jax import models, weights; weights.load, weights.save\n"
        "import sys; print(*sorted(sys.modules))"
    )
    imported = run_python("-c", code, fresh=True).stdout.split()
    assert "flax" in imported
    assert not {"orbax", "tensorstore", "tensorflow", "PIL"}.intersection(imported)


def test_trainings_and_evaluations_start_without_what_pages_and_probes_need(run_python):
    code = (
        "from vit_jax import train; from vit_jax.evaluate import __main__\n"
        "import sys; print(*sorted(sys.modules))"
    )
    imported = run_python("-c", code, fresh=True).stdout.split()
    assert not {"matplotlib", "scipy.optimize", "scipy.special"}.intersection(imported)


def test_a_training_imports_only_what_its_config_names(run_python, tmp_path):
    code = (
        "import sys; from etils import epath; from vit_jax import config, train\n"
        "from vit_jax.run.build import Run\n"
        "Run.build(config.load('vit_digits'), epath.Path(sys.argv[1]))\n"
        "print(*sorted(sys.modules))"
    )
    imported = run_python("-c", code, str(tmp_path), fresh=True).stdout.split()
    assert {"vit_jax.evals.classification", "vit_jax.data.ops.decode"} <= set(imported)
    unnamed = (
        "vit_jax.weights.loading", "vit_jax.weights.online", "vit_jax.weights.formats",
        "vit_jax.learning.methods.", "vit_jax.evals.frozen", "vit_jax.evals.pictures",
        "vit_jax.data.sources.tfds", "vit_jax.data.sources.image_folder",
        "vit_jax.data.ops.autoaugment", "vit_jax.data.ops.augmentations", "vit_jax.models.observe",
    )  # fmt: skip
    assert [name for name in imported if name.startswith(unnamed)] == []
