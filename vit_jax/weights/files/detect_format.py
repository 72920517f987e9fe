"""Opens a file of arrays; its first bytes tell the kind, not its name."""

import argparse
import dataclasses
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.core import errors
from vit_jax.core.errors import UserError
from vit_jax.weights.files import npz, safetensors
from vit_jax.weights.files.tensors import Tensor, Tensors, of_array

# The start of a file that Git LFS has put in place of a large one.
_LFS_POINTER = b"version https://git-lfs"
# Files of weights that are not read, by the end of their names, and what to do about each.
_UNREAD_FILES = {
    "flax_model.msgpack": "Flax's: load it in transformers 4 and save it by save_pretrained()",
    "tf_model.h5": "TensorFlow's: load it in transformers 4 and save it by save_pretrained()",
    "adapter_model.safetensors": "an adapter's alone: merge it into its model in peft "
    "(merge_and_unload()) and save that",
    "adapter_model.bin": "an adapter's alone: merge it into its model in peft "
    "(merge_and_unload()) and save that",
    ".onnx": "a program, not weights by name: take the model it was exported from",
    ".gguf": "quantised: take the model it was made from",
    ".h5": "Keras's: save the model as .npz or safetensors",
    ".msgpack": "Flax's: save its parameters as .npz",
}
# Parts of a training's checkpoint that may hold the model.
_WRAPPERS = ("state_dict", "model", "model_state_dict", "model_state", "module", "net", "network")
_SEVERAL = ("model_ema", "state_dict_ema", "ema", "ema_state_dict", "teacher", "student")
INDEX = ".index.json"  # suffix to the name that the shards would have as one file
# In a folder, the first of these that exists is read.
FILES = tuple(
    f"{name}{end}" for name in ("model.safetensors", "pytorch_model.bin") for end in ("", INDEX)
)
# What torch and trainers put before all names: DDP, torch.compile, Lightning, self-supervision.
_PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.", "student.", "teacher.", "network.")
MAX_JSON_BYTES = 64 * 2**20


@dataclasses.dataclass(frozen=True)
class Opened:
    """Arrays, and the JSON beside them.

    Attributes:
      kind: "npz", "safetensors" or "torch".
      config: config.json, None without it.
      preprocessor: preprocessor_config.json, None without it.
    """

    path: Path
    kind: str
    tensors: Tensors
    config: dict[str, Any] | None
    preprocessor: dict[str, Any] | None


def is_external(path: Path) -> bool:
    """Whether `path` is a file, or a folder in the form of Hugging Face and timm."""
    try:
        return path.is_file() or any((path / name).is_file() for name in FILES)
    except OSError as error:  # a name may be too long
        raise UserError(f"{path} cannot be read: {error}.") from error


def open_weights(path: Path) -> Opened:
    """Arrays of a file or folder; only PyTorch's are read now, others on demand. UserError."""
    inside = (path / name for name in FILES if (path / name).is_file())
    file = next(inside) if path.is_dir() else path
    if file.name.endswith(INDEX):
        kind, tensors = _sharded(file)
    else:
        kind, tensors = _arrays(file)
    if not tensors:
        raise UserError(f"{file} holds no arrays.")
    tensors = _without_wrappers(tensors)
    beside = (file.parent / "config.json", file.parent / "preprocessor_config.json")
    documents = [None if kind == "npz" or not f.is_file() else read_json(f) for f in beside]
    return Opened(path, kind, tensors, *documents)


def check_folder(folder: Path) -> None:
    """UserError for a folder with weights that are not read here, and no others."""
    if not folder.is_dir():
        return
    names = sorted(file.name for file in folder.iterdir())
    for end, advice in _UNREAD_FILES.items():
        found = next((name for name in names if name.endswith(end)), None)
        if found:
            raise UserError(
                f"{folder} has no {FILES[0]}, but {found}, which is {advice}. Files that are read "
                f"from a folder: {', '.join(FILES)}."
            )
    named = [name for name in names if name.endswith((".safetensors", ".npz", ".pth", ".pt"))]
    if named:
        raise UserError(f"{folder} has no {FILES[0]}, but {named[0]}: give that file by its path.")


def _without_wrappers(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Arrays without what torch's wrappers put before every name, such as "module."."""
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in tensors):
            shorter = {name.removeprefix(prefix): x for name, x in tensors.items()}
            return _without_wrappers(shorter)
    return tensors


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object. UserError."""
    try:
        if file.stat().st_size > MAX_JSON_BYTES:
            raise UserError(f"{file} is larger than {MAX_JSON_BYTES:,} bytes.")
        document = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{file} cannot be read as JSON: {error}.") from error
    if not isinstance(document, dict):
        raise UserError(f"{file} is not a JSON object.")
    return document


def _arrays(file: Path) -> tuple[str, dict[str, Tensor]]:
    try:
        with file.open("rb") as stream:
            start = stream.read(len(_LFS_POINTER))
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error}.") from error
    if start == _LFS_POINTER:
        raise UserError(
            f"{file} is a pointer of Git LFS, not the file itself: run git lfs pull in its folder."
        )
    if start[:4] == b"PK\x03\x04":
        return ("torch", _read_torch(file)) if _is_torch(file) else ("npz", npz.read(file))
    if start[8:9] == b"{" or file.suffix == ".safetensors":
        return "safetensors", safetensors.read(file)
    if start[:1] == b"\x80" or file.suffix in (".bin", ".pt", ".pth"):
        return "torch", _read_torch(file)
    if file.suffix == ".npz":
        return "npz", npz.read(file)  # its message states the error
    raise UserError(
        f"{file} is not a file of weights: it begins like none of .npz, .safetensors and PyTorch's."
    )


def _is_torch(file: Path) -> bool:
    """Whether a zip file is from PyTorch, with a pickle beside its arrays."""
    try:
        with zipfile.ZipFile(file) as opened:
            return any(n.endswith("data.pkl") for n in opened.namelist()[: npz.MAX_ARRAYS])
    except (OSError, zipfile.BadZipFile, NotImplementedError):
        return False  # the message of .npz's reader states the error


def _read_torch(path: Path) -> dict[str, Tensor]:
    """Tensors by name, read by PyTorch's loader that runs no code from a file."""
    try:
        import torch
    except ImportError as error:
        raise UserError(
            f"{path} is a pickle, which can run code of its own as it is read. PyTorch's loader of "
            "weights alone reads such files, and PyTorch is not installed: use the model's "
            ".safetensors file, or install PyTorch."
        ) from error
    try:
        # Options of a training, which many checkpoints have beside the model.
        with torch.serialization.safe_globals([argparse.Namespace]):
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the type depends on the file
        first = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UserError(
            f"{path} is refused: it is damaged, or a pickle that holds other things than tensors "
            f"and would run code of its own ({first}). Use the model's .safetensors file."
        ) from error
    named = _model_of(path, tensors, torch.Tensor)
    return {name: of_array(_numpy(path, name, x)) for name, x in named.items()}


def _model_of(path: Path, saved: Any, tensor: type) -> dict[str, Any]:
    """The tensors by name in what was saved: all of it, or one part of a training's checkpoint."""
    is_model = lambda x: (
        isinstance(x, dict)
        and bool(x)
        and all(isinstance(n, str) and isinstance(t, tensor) for n, t in x.items())
    )
    if is_model(saved):
        return dict(saved)
    inside = saved if isinstance(saved, dict) else {}
    there = [key for key in (*_WRAPPERS, *_SEVERAL) if is_model(inside.get(key))]
    if len(there) == 1:
        return dict(inside[there[0]])
    if there:
        raise UserError(
            f"{path} holds several models, {', '.join(map(repr, there))}: say which one it is by "
            f"saving that alone, torch.save(torch.load({path.name!r})[{there[0]!r}], FILE)."
        )
    raise UserError(
        f"{path} holds other things than tensors by name: save model.state_dict(), or use the "
        "model's .safetensors file."
    )


def _numpy(path: Path, name: str, x: Any) -> np.ndarray:
    """A tensor's values, of whatever layout. UserError for one that has none, or is quantised."""
    try:
        if x.is_quantized:
            raise TypeError("it is quantised")
        x = x.detach()
        x = x if x.layout == _strided() else x.to_dense()
        x = x.resolve_conj().resolve_neg()
        return (x.float() if x.is_floating_point() else x).numpy()  # NumPy lacks bfloat16
    except (RuntimeError, TypeError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        kind = "meta, without values" if x.is_meta else reason
        raise UserError(
            f"{path}: {name[:200]} cannot be read ({kind}): save the dense floating-point tensors "
            "of model.state_dict()."
        ) from error


def _strided() -> Any:
    import torch

    return torch.strided


def _sharded(index: Path) -> tuple[str, dict[str, Tensor]]:
    """The kind and the arrays of several files, by their index."""
    torch = index.name.endswith(f".bin{INDEX}")
    kind, read = ("torch", _read_torch) if torch else ("safetensors", safetensors.read)
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(f, str) for f in where.values()):
        raise UserError(f"{index} has no weight_map from names to files.")
    files = sorted(set(where.values()))
    outside = [f for f in files if Path(f).name != f]
    if outside:
        raise UserError(f"{index} names {outside[0]!r}, which is not a file in its own folder.")
    absent = [f for f in files if not _is_file(index.parent, f)]
    if absent:
        raise UserError(
            f"{index} names {errors.shortened(', '.join(absent))}, which is not there: get all "
            "parts."
        )
    parts = {f: read(index.parent / f) for f in files}
    lost = [f"{name} in {f}" for name, f in where.items() if name not in parts[f]]
    if lost:
        shown = errors.shortened(", ".join(lost))
        raise UserError(f"{index} names arrays that are not there: {shown}.")
    return kind, {name: parts[f][name] for name, f in where.items()}


def _is_file(folder: Path, name: str) -> bool:
    try:
        return (folder / name).is_file()
    except (OSError, ValueError):  # too long, or of characters that no file name has
        return False
