import pytest

from vit_jax.core import devices

PROGRAM = """
import jax
from vit_jax.core import command
command.run(lambda _: print(jax.default_backend()))
"""


@pytest.mark.parametrize(
    ("platforms", "message"),
    [
        ("cuda", "no such device was found"),  # JAX fails an assertion
        ("cpuu", "Did you mean 'cpu'?"),
        ("cpu,CPU", "Did you mean 'cpu,cpu'?"),
        ("rocm", "'rocm'"),
    ],
)
def test_platforms_that_cannot_be_used_are_one_line_and_status_1(run_python, platforms, message):
    done = run_python("-c", PROGRAM, JAX_PLATFORMS=platforms, CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]  # JAX may log a line of its own first
    assert last.startswith(f"error: JAX_PLATFORMS={platforms} is not what JAX can use here (")
    assert "Traceback" not in done.stderr
    assert message in last
    assert "set JAX_PLATFORMS=" in last


def test_the_platforms_that_are_there_are_used(run_python):
    assert run_python("-c", PROGRAM, JAX_PLATFORMS="cpu").stdout == "cpu\n"


def test_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(devices, "_wanted", lambda: "tpu")
    monkeypatch.setattr(devices, "_there", lambda: ["cpu"])
    of_jax = "Unable to initialize backend 'tpu': no libtpu.so (set JAX_PLATFORMS='' to choose)"
    message = str(devices.unusable(RuntimeError(of_jax)))
    assert message == (
        "JAX_PLATFORMS=tpu is not what JAX can use here ('tpu': no libtpu.so). Here there is cpu: "
        "set JAX_PLATFORMS=cpu, or unset it. For a TPU, docs/install.md: pip install '.[tpu]' in "
        "the clone."
    )


def test_a_device_that_fails_without_being_requested(monkeypatch):
    monkeypatch.setattr(devices, "_wanted", lambda: "")
    of_jax = "Unable to initialize backend 'tpu': it is in use"
    assert "it is in use): JAX_PLATFORMS=cpu does without" in str(
        devices.unusable(RuntimeError(of_jax))
    )


@pytest.mark.parametrize("error", [RuntimeError("x"), AssertionError(), ValueError("Unable")])
def test_other_errors_are_bugs(error):
    assert devices.unusable(error) is None
