"""Paths at gs:// and the like: what their storage answers, and copying to them."""

import os

from vit_jax.core.cloud.answers import Failure, explained, failure, is_folder, is_remote
from vit_jax.core.cloud.uploads import staged, upload

# TensorStore, of checkpoints and of the lock, would wait for ever for a connection that has died: a
# minute without a byte ends an attempt, and another follows. It reads these at its first request.
os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", "60")
os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")

__all__ = ["Failure", "explained", "failure", "is_folder", "is_remote", "staged", "upload"]
