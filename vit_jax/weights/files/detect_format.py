"""Opens a file of arrays; its first bytes tell the kind, not its name."""

import dataclasses
import json
import zipfile
from pathlib import Path
from typing import Any

from vit_jax.core.errors import UserError
from vit_jax.weights.files import npz, safetensors
from vit_jax.weights.files.tensors import Tensor, Tensors, of_array

INDEX = ".index.json"  # suffix to the name that the shards would have as one file
# In a folder, the first of these that exists is read.
FILES = tuple(
    f"{name}{end}" for name in ("model.safetensors", "pytorch_model.bin") for end in ("", INDEX)
)
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
    beside = (file.parent / "config.json", file.parent / "preprocessor_config.json")
    documents = [None if kind == "npz" or not f.is_file() else read_json(f) for f in beside]
    return Opened(path, kind, tensors, *documents)


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
            start = stream.read(9)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error}.") from error
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
    # NumPy lacks bfloat16.
    arrays = {n: (x.float() if x.is_floating_point() else x) for n, x in tensors.items()}
    return {name: of_array(x.numpy()) for name, x in arrays.items()}


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
    absent = [f for f in files if not (index.parent / f).is_file()]
    if absent:
        raise UserError(f"{index} names {', '.join(absent)}, which is not there: get all parts.")
    parts = {f: read(index.parent / f) for f in files}
    lost = [f"{name} in {f}" for name, f in where.items() if name not in parts[f]]
    if lost:
        raise UserError(f"{index} names arrays that are not there: {', '.join(lost[:20])}.")
    return kind, {name: parts[f][name] for name, f in where.items()}
