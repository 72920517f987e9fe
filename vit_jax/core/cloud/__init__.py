"""Paths at gs:// and the like: what their storage answers, and copying to them."""

from vit_jax.core.cloud.answers import Failure, explained, failure, is_folder, is_remote
from vit_jax.core.cloud.uploads import staged, upload

__all__ = ["Failure", "explained", "failure", "is_folder", "is_remote", "staged", "upload"]
