"""PyTorch's files, read by its loader that runs no code of theirs.

A file may be a state dict, or a training's checkpoint with one inside, as {"model": ...,
"optimizer": ...}. Objects beside the arrays that do nothing, such as the arguments of the command
that wrote it, are replaced by a placeholder.
"""

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vit_jax.core.errors import UserError
from vit_jax.weights.files import Tensor, from_array, listed, npz

MAX_DEPTH = 4  # of dictionaries around a state dict
MAX_SHOWN = 8
_HOW = 'torch.save(model.state_dict(), "weights.pth")'
# Objects that are not read. They are placeholders since to make them could have effects.
_INERT = (
    "argparse.Namespace",
    "types.SimpleNamespace",
    *(
        f"{module}.{kind}"
        for module in ("pathlib", "pathlib._local")  # the second of Python 3.13
        for kind in ("Path", "PosixPath", "PurePosixPath", "WindowsPath")
    ),
    *(f"numpy.{core}.multiarray.scalar" for core in ("core", "_core")),
    "numpy.dtype",
)


class _Placeholder:
    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


def read(path: Path) -> tuple[dict[str, Tensor], str]:
    """Arrays by name, and a sentence on where in the file they are; empty for a plain state dict.

    Raises:
      UserError: a file that is damaged, would run code, or holds no arrays, those of several models
        or some without values.
    """
    document = _load(path)
    models = list(_state_dicts(document))
    if not models and isinstance(document, dict):  # arrays of other names
        models = [((), _arrays(document))] if _arrays(document) else []
    if not models:
        raise UserError(
            f"{path} holds other things than tensors by name: save {_HOW}, or use the model's "
            ".safetensors file."
        )
    if len(models) > 1:
        names = [_spell(where) for where, _ in models]
        raise UserError(
            f"{path} holds the arrays of several models, {listed(names, MAX_SHOWN)}. Save one of "
            f'them alone: torch.save(torch.load("{path.name}", "cpu", weights_only=False)'
            f'{names[-1]}, "weights.pth"). That runs any code in the file: it has to be trusted.'
        )
    ((where, tensors),) = models
    return {name: _tensor(path, name, x) for name, x in tensors.items()}, _note(document, where)


def _load(path: Path) -> Any:
    try:
        import torch
    except ImportError as error:
        raise UserError(
            f"{path} is a pickle, which can run code of its own as it is read. PyTorch's loader of "
            "weights alone reads such files, and PyTorch is not installed: use the model's "
            ".safetensors file, or install PyTorch."
        ) from error
    if _is_torchscript(path):
        raise UserError(
            f"{path} is a TorchScript program, not weights alone. Save these where it runs: "
            f'torch.save(torch.jit.load("{path.name}").state_dict(), "weights.pth").'
        )
    allowed: list[Any] = [(_Placeholder, name) for name in _INERT]
    try:
        # Indices of sparse tensors are checked here: to_dense() writes where they point.
        with (
            torch.serialization.safe_globals(allowed),
            torch.sparse.check_sparse_tensor_invariants(),
        ):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the type depends on the file
        text = str(error)
        if name := re.search(r"GLOBAL (\S+) was not an allowed", text):
            raise UserError(
                f"{path} is refused: it is a pickle that holds other things than tensors, here "
                f"{name[1][:100]}, and would run code of its own. Where it was written, save the "
                f"weights alone: {_HOW}; or use the model's .safetensors file."
            ) from error
        first = (text.splitlines() or [type(error).__name__])[0].partition("\x1b")[0][:200]
        raise UserError(
            f"{path} is refused: it is damaged, or a pickle that holds other things than tensors "
            f"and would run code of its own ({first}). Get it anew, or use the model's "
            ".safetensors file."
        ) from error


def is_torch(file: Path) -> bool:
    """Whether a zip file is from PyTorch, with a pickle beside its arrays."""
    return any(name.endswith("data.pkl") for name in _members(file))


def _is_torchscript(file: Path) -> bool:
    members = _members(file)
    return any(n.endswith("/constants.pkl") for n in members) and any(
        "/code/" in n for n in members
    )


def _members(file: Path) -> list[str]:
    try:
        with zipfile.ZipFile(file) as opened:
            return opened.namelist()[: npz.MAX_ARRAYS]
    except (OSError, zipfile.BadZipFile, NotImplementedError):
        return []  # another kind of file, or damaged, which its reader states


def _state_dicts(
    node: Any, where: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """(keys that lead to it, its tensors) of each dictionary with layers' weights."""
    if not isinstance(node, dict) or len(where) > MAX_DEPTH:
        return
    arrays = _arrays(node)
    # An optimizer's state and a loss's have tensors too.
    if any(name.endswith(".weight") for name in arrays):
        yield where, arrays
    for key, inside in node.items():
        if isinstance(key, str) and not key.lower().startswith("optim"):
            yield from _state_dicts(inside, (*where, key))


def _arrays(node: dict) -> dict[str, Any]:
    import torch

    return {n: x for n, x in node.items() if isinstance(n, str) and isinstance(x, torch.Tensor)}


def _note(document: dict, where: tuple[str, ...]) -> str:
    """What is read of a file and what is not."""
    node, others = document, []
    for key in where:
        others += [str(name) for name in node if name != key]
        node = node[key]
    others += [str(name) for name in node if name not in _arrays(node)]
    read = f"its arrays are those of {_spell(where)}" if where else "its tensors are read"
    return f"{read}, not {listed(others, MAX_SHOWN)}." if others else f"{read}." if where else ""


def _spell(where: tuple[str, ...]) -> str:
    return "".join(f'["{key}"]' for key in where) or "the whole file"


def _tensor(path: Path, name: str, x: Any) -> Tensor:
    """An array in memory; floating-point numbers as float32, since NumPy lacks some of them."""
    what = f"{path}: {name[:100]}"
    if x.is_meta:
        raise UserError(
            f'{what} has no values: it was saved from the device "meta". Load the values into the '
            f"model first, then {_HOW}."
        )
    if x.is_quantized:
        raise UserError(
            f"{what} is quantised ({x.dtype}): save the model before it was quantised, or "
            ".dequantize() of each array."
        )
    try:
        x = x.detach()
        is_dense = str(x.layout) == "torch.strided"
        nbytes = x.untyped_storage().nbytes() if is_dense else 8 * x._nnz()
        if x.numel() * 4 > max(npz.ALWAYS_ALLOWED_BYTES, npz.MAX_EXPANSION * nbytes):
            raise UserError(
                f"{what} of the shape {str(tuple(x.shape))[:100]} repeats or leaves out what "
                f"{nbytes:,} bytes hold: that is not an array of weights. Save .clone() of it."
            )
        if not is_dense:
            x = x.to_dense()
        x = x.resolve_conj().resolve_neg()
        return from_array((x.float() if x.is_floating_point() else x).numpy())
    except (RuntimeError, TypeError, NotImplementedError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UserError(
            f"{what} cannot be read as an array ({x.dtype}, {x.layout}: {first}): save it as a "
            "plain tensor of float32."
        ) from error
