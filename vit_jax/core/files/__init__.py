"""Atomic files, strict JSON, the user's cache folder."""
