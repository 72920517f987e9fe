"""PyTorch's .bin and .pt files, read by the loader that runs no code from a file."""

from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.weights.files.tensors import Tensor, of_array


def read(path: Path) -> dict[str, Tensor]:
    """Tensors by name.

    Raises:
      UserError: PyTorch is not installed, or the file holds anything but tensors by name.
    """
    try:
        import torch
    except ImportError as error:
        raise UserError(
            f"{path} is a pickle, which can run code of its own as it is read. PyTorch's loader of "
            "weights alone reads such files, and PyTorch is not installed: use the model's "
            ".safetensors file, or install PyTorch."
        ) from error
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the type depends on the file
        first = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UserError(
            f"{path} is refused: it is damaged, or a pickle that holds other things than tensors "
            f"and would run code of its own ({first}). Use the model's .safetensors file."
        ) from error
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(x, torch.Tensor) for name, x in tensors.items()
    ):
        raise UserError(
            f"{path} holds other things than tensors by name: save model.state_dict(), or use the "
            "model's .safetensors file."
        )
    return {name: of_array(_array(x)) for name, x in tensors.items()}


def _array(tensor: Any) -> np.ndarray:
    """A tensor as an array; float32 for bfloat16, which NumPy lacks."""
    return tensor.float().numpy() if tensor.is_floating_point() else tensor.numpy()
