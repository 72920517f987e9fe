"""Finding the checkouts, and leaving them out of the usual run."""

from pathlib import Path

import numpy as np
import pytest

from tests.outside.checkouts import ADDRESSES, Checkout, checkout


@pytest.mark.parametrize("name", ADDRESSES)
def test_without_a_checkout_says_how_to_get_it(tmp_path, name):
    for references, folder in ((None, "DIR"), (str(tmp_path), tmp_path)):
        with pytest.raises(pytest.skip.Exception) as skipped:
            checkout(name, references)
        said = str(skipped.value).replace(",", "").split()
        assert {ADDRESSES[name], f"{folder}/{name}", "--references", str(folder)} <= set(said)


def test_the_page_clones_each():
    page = Path(__file__).parents[2] / "docs" / "outside.md"
    clones = {line.split()[-1] for line in page.read_text().splitlines() if "git clone" in line}
    assert clones == {f"../references/{name}" for name in ADDRESSES}


def test_a_program_runs_on_the_code_of_the_checkout(tmp_path):
    """Works even if its package has the same name as ours."""
    package = tmp_path / "theirs" / "vit_jax"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("FACTOR = 3\n")
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nimport numpy as np\nimport vit_jax\n"
        "np.savez(sys.argv[2], y=vit_jax.FACTOR * np.load(sys.argv[1])['x'])\n"
    )
    outputs = Checkout(tmp_path / "theirs").run(program, {"x": np.arange(3)}, tmp_path)
    np.testing.assert_array_equal(outputs["y"], [0, 3, 6])


@pytest.mark.parametrize("name", ADDRESSES)
def test_a_checkout_is_found(reference, name):
    """Marked by the fixture that it requests."""
    assert any(reference(name).path.iterdir())


def test_what_asks_for_a_checkout_is_not_in_the_usual_run(run_python):
    listed = run_python("-m", "pytest", "--collect-only", "-q", "-p", "no:xdist", __file__)
    assert "test_a_program_runs" in listed.stdout
    assert "test_a_checkout_is_found" not in listed.stdout
