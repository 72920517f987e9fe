"""PyTorch's files, read by its loader that runs no code of theirs.

A file may be a state dict, or a training's checkpoint with one inside, as {"model": ...,
"optimizer": ...}. Objects beside the arrays that do nothing, such as the arguments of the command
that wrote it, are replaced by a placeholder.
"""

import re
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

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
    """Arrays by name, and a sentence on where in the file they are, if not at its top.

    Of several models the names begin with the keys that lead to each: "teacher.head.weight".
    """
    document = _load(path)
    models = dict(_state_dicts(document))
    if not models and isinstance(document, dict):  # arrays of other names
        models = {(): _arrays(document)}
    if not any(models.values()):
        raise ValueError(f"it holds other things than tensors by name: save {_HOW}")
    place = next(iter(models)) if len(models) == 1 else ()
    named = {
        ".".join((*where[len(place) :], name)): x
        for where, arrays in models.items()
        for name, x in arrays.items()
    }
    return {name: _tensor(name, x) for name, x in named.items()}, _note(document, place, models)


def _load(path: Path) -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "it is a pickle, which PyTorch alone reads without running its code"
        ) from error
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
        name = re.search(r"GLOBAL (\S+) was not an allowed", text)
        reason = name[1] if name else _first_line(error)
        reason = f"({reason[:200]}): save {_HOW}"
        raise ValueError(f"damaged, or a pickle that would run code of its own {reason}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].partition("\x1b")[0][:200]


def is_torch(file: Path) -> bool:
    """Returns whether a zip file is from PyTorch, with a pickle beside its arrays."""
    try:
        with zipfile.ZipFile(file) as opened:
            return any(name.endswith("data.pkl") for name in opened.namelist())
    except (OSError, zipfile.BadZipFile, NotImplementedError):
        return False  # another kind of file, or damaged, which its reader states


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


def _note(document: dict, place: tuple[str, ...], models: Collection[tuple[str, ...]]) -> str:
    """What is read and what is not, where `models` are below `place`."""
    node, others = document, []
    for key in place:
        others += [str(name) for name in node if name != key]
        node = node[key]
    read = {*_arrays(node), *(where[0] for where in models if where and not place)}
    others += [str(name) for name in node if name not in read]
    spelt = "".join(f'["{key}"]' for key in place)
    what = f"its arrays are those of {spelt}" if place else "its tensors are read"
    return f"{what}, not {listed(others, MAX_SHOWN)}." if others else f"{what}." if place else ""


def _tensor(name: str, x: Any) -> Tensor:
    """An array in memory; floating-point numbers as float32, since NumPy lacks some of them."""
    try:
        x = x.detach()
        is_dense = str(x.layout) == "torch.strided"
        nbytes = x.untyped_storage().nbytes() if is_dense else 8 * x._nnz()
        if x.numel() * 4 > max(npz.ALWAYS_ALLOWED_BYTES, npz.MAX_EXPANSION * nbytes):
            raise TypeError(f"it repeats or leaves out what {nbytes:,} bytes hold")
        if not is_dense:
            x = x.to_dense()
        x = x.resolve_conj().resolve_neg()
        return from_array((x.float() if x.is_floating_point() else x).numpy())
    except (RuntimeError, TypeError, NotImplementedError) as error:
        kind = f"{name[:100]} ({x.dtype}, {x.layout})"
        raise ValueError(f"{kind} is not read as an array: {_first_line(error)}") from error
