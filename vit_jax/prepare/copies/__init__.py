"""Copies of images: exact, near and mirrored."""
