"""Chromium without a window; tools/demo/browser.py drives one."""

import shutil
import subprocess

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
# Without the last ones Chromium asks hosts of Google for news at every start.
OPTIONS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


def page_after_scripts(folder, address, *options):
    """The page at an address, as its scripts leave it; the profile is in `folder`."""
    profile = f"--user-data-dir={folder / 'profile'}"
    command = [CHROMIUM, *OPTIONS, profile, "--dump-dom", *options, address]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
