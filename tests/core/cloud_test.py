from pathlib import Path

import jax
import pytest

from vit_jax.core import cloud
from vit_jax.core.errors import UserError
from vit_jax.data.host_tf import tf

FORBIDDEN = "Error executing an HTTP request: HTTP response code 403\n when reading gs://b/x"


def raised_from(cause, error):
    try:
        try:
            raise cause
        except type(cause) as caught:
            raise error from caught
    except type(error) as result:
        return result


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.PermissionDeniedError(None, None, FORBIDDEN),
        tf.errors.UnavailableError(None, None, "All 10 attempts failed for gs://b/x"),
        tf.errors.UnimplementedError(None, None, "File system scheme 's3' not implemented"),
        tf.errors.FailedPreconditionError(
            None, None, "Error executing an HTTP request: libcurl code 6 meaning 'Could not re"
        ),
        tf.errors.InvalidArgumentError(None, None, "GCS path doesn't contain a bucket name: gs://"),
        ValueError('NOT_FOUND: Error writing "gs://b/x"'),
        RuntimeError("UNAVAILABLE: connection to https://storage.googleapis.com"),
        raised_from(ValueError("PERMISSION_DENIED: gs://b"), KeyError("x")),
        ExceptionGroup("two", [KeyError("x"), ValueError("ABORTED: gs://b")]),
    ],
)
def test_errors_of_the_storage(error):
    failed = cloud.failure(error)
    assert failed is not None
    assert cloud.is_missing(failed) == ("NOT_FOUND" in str(error))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        KeyError("gs://b/x"),
        FileNotFoundError(2, "gs://b/x"),
        tf.errors.InvalidArgumentError(None, None, "Expected image (JPEG, PNG, or GIF)"),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory, see https://jax.dev"),
    ],
)
def test_other_errors_are_left_alone(error):
    assert cloud.failure(error) is None


def test_a_path_of_this_machine_is_new_and_may_begin_with_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with cloud.staged("~/model") as local:
        assert local == str(tmp_path / "model")
        Path(local).symlink_to("nowhere")
    with pytest.raises(UserError, match="is there already"), cloud.staged("~/model"):
        pass


def test_what_is_written_beside_a_staged_file_is_uploaded_before_it(tmp_path, monkeypatch):
    monkeypatch.setattr(cloud, "is_remote", lambda path: True)
    uploaded, upload = [], cloud.upload
    monkeypatch.setattr(cloud, "upload", lambda *a: (uploaded.append(a[0].name), upload(*a)))
    with cloud.staged(tmp_path / "model.onnx") as local:
        Path(local).write_text("graph")
        Path(f"{local}.data").write_text("weights")
    assert uploaded == ["model.onnx.data", "model.onnx"]
    assert (tmp_path / "model.onnx").read_text() == "graph"
    assert (tmp_path / "model.onnx.data").read_text() == "weights"
