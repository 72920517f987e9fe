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

from vit_jax.weights.files import Tensor, from_array, listed, npz

MAX_DEPTH = 4  # of dictionaries around a state dict
MAX_SHOWN = 8
_HOW = 'torch.save(model.state_dict(), "weights.pth")'
# Where a training saves several models, the one whose weights its authors use, and what its names
# have: DINO, whose dictionaries have the keys of any distillation, and I-JEPA.
_CHOSEN = {
    frozenset({"student", "teacher"}): ("teacher", r"\bbackbone\.|\bhead\.last_layer\."),
    frozenset({"encoder", "predictor", "target_encoder"}): ("target_encoder", ""),
}
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
    """Arrays by name, and a sentence on where in the file they are, if not at its top."""
    document = _load(path)
    models = list(_state_dicts(document))
    if not models and isinstance(document, dict):  # arrays of other names
        models = [((), _arrays(document))] if _arrays(document) else []
    if not models:
        raise ValueError(f"it holds other things than tensors by name: save {_HOW}")
    kinds = frozenset("".join(where[:1]) for where, _ in models)
    chosen, sign = _CHOSEN.get(kinds, ("", ""))
    its = [each for each in models if chosen in each[0]]
    if any(re.search(sign, ".".join((*where, name))) for where, x in its for name in x):
        models = its
    if len(models) > 1:
        names = [_spell(where) for where, _ in models]
        raise ValueError(f"it holds several models, {listed(names, MAX_SHOWN)}: save one of them")
    ((where, tensors),) = models
    return {name: _tensor(name, x) for name, x in tensors.items()}, _note(document, where)


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


def _note(document: dict, where: tuple[str, ...]) -> str:
    node, others = document, []
    for key in where:
        others += [str(name) for name in node if name != key]
        node = node[key]
    others += [str(name) for name in node if name not in _arrays(node)]
    read = f"its arrays are those of {_spell(where)}" if where else "its tensors are read"
    return f"{read}, not {listed(others, MAX_SHOWN)}." if others else f"{read}." if where else ""


def _spell(where: tuple[str, ...]) -> str:
    return "".join(f'["{key}"]' for key in where) or "the whole file"


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
