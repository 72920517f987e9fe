"""What importing parts of the package does not import."""


def test_weights_of_other_projects_are_read_without_orbax(run_python):
    code = "from vit_jax import models, weights; import sys; print(*sorted(sys.modules))"
    imported = run_python("-c", code, fresh=True).stdout.split()
    assert "flax" in imported
    assert not {"orbax", "tensorstore", "tensorflow", "PIL"}.intersection(imported)
