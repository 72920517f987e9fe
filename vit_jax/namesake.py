"""Google's package of the same import name (google-research/vision_transformer)."""

import sys
from pathlib import Path

MIXED = (
    "Google's vit_jax (google-research/vision_transformer) and vit-jax-pretraining, both imported "
    "as vit_jax, are in one folder, and have overwritten each other's files. Uninstall both (pip "
    "uninstall vit_jax vit-jax-pretraining) and install one of them again, or each in a virtual "
    "environment of its own."
)


def check(package: Path) -> None:
    """Raises ImportError if the package's folder has files of theirs, which they alone have.

    The program vit-jax ends with the message alone.
    """
    if (package / "input_pipeline.py").exists():
        if Path("".join(sys.argv[:1])).name in ("vit-jax", "vit-jax.exe"):
            raise SystemExit(f"error: {MIXED}")
        raise ImportError(MIXED, name="vit_jax")
