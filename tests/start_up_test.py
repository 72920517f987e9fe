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
