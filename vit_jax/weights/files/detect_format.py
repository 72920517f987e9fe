"""Opens a file of arrays; its first bytes tell the kind, not its name."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from vit_jax.core import errors
from vit_jax.core.errors import UserError
from vit_jax.core.files import is_name
from vit_jax.weights.files import Tensor, Tensors, npz, pytorch, safetensors

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
    ".jax_export": "a program, not weights by name: take the model it was exported from",
    ".gguf": "quantised: take the model it was made from",
    ".h5": "Keras's: save the model as .npz or safetensors",
    ".msgpack": "Flax's: save its parameters as .npz",
}
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
      note: a sentence on where in the file the arrays are; empty if they are all of it.
      caller_image_size: (height, width) in pixels, where the file does not state it.
      caller_num_heads: of a ViT, whose arrays show it in few formats.
    """

    path: Path
    kind: str
    tensors: Tensors
    config: dict[str, Any] | None
    preprocessor: dict[str, Any] | None
    note: str = ""
    caller_image_size: tuple[int, int] | None = None
    caller_num_heads: int | None = None

    @property
    def entries(self) -> dict[str, Any]:
        """Those of config.json; none without it."""
        return self.config or {}


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
    if file.name.endswith(tuple(_UNREAD_FILES)):
        advice = next(text for end, text in _UNREAD_FILES.items() if file.name.endswith(end))
        raise UserError(f"{file} is not read: it is {advice}.")
    kind, tensors, note = (_sharded if file.name.endswith(INDEX) else _arrays)(file)
    if not tensors:
        raise UserError(f"{file} holds no arrays.")
    beside = (file.parent / "config.json", file.parent / "preprocessor_config.json")
    config, preprocessor = (
        None if kind == "npz" or not f.is_file() else read_json(f) for f in beside
    )
    return Opened(path, kind, tensors, config, preprocessor, note)


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


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object. UserError."""
    try:
        if file.stat().st_size > MAX_JSON_BYTES:
            raise UserError(f"{file} is larger than {MAX_JSON_BYTES:,} bytes.")
        data = file.read_bytes()
        if data.startswith(_LFS_POINTER):
            raise _not_pulled(file)
        document = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{file} cannot be read as JSON: {error}.") from error
    if not isinstance(document, dict):
        raise UserError(f"{file} is not a JSON object.")
    return document


def _arrays(file: Path) -> tuple[str, dict[str, Tensor], str]:
    """The kind of a file, its arrays, and the note of Opened."""
    try:
        with file.open("rb") as stream:
            start = stream.read(262)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error}.") from error
    if start.startswith(_LFS_POINTER):
        raise _not_pulled(file)
    if start[257:] == b"ustar":
        raise UserError(
            f"{file} is an archive of files, a tar: unpack it and give the file of weights in it. "
            "If PyTorch wrote it, before version 0.4, load it there and save it anew."
        )
    if start[:4] == b"PK\x03\x04" and not pytorch.is_torch(file):
        return "npz", npz.read(file), ""
    if start[8:9] == b"{" or file.suffix == ".safetensors":
        return "safetensors", safetensors.read(file), ""
    if start[:1] == b"\x80" or start[:2] == b"PK" or file.suffix in (".bin", ".pt", ".pth"):
        return "torch", *pytorch.read(file)
    if file.suffix == ".npz":
        return "npz", npz.read(file), ""  # its message states the error
    raise UserError(
        f"{file} is not a file of weights: it begins like none of .npz, .safetensors and PyTorch's."
    )


def _not_pulled(file: Path) -> UserError:
    return UserError(
        f"{file} is a pointer of Git LFS, not the file itself: run git lfs pull in its folder."
    )


def _sharded(index: Path) -> tuple[str, dict[str, Tensor], str]:
    """The kind, the arrays and the note of several files, by their index."""
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(f, str) for f in where.values()):
        raise UserError(f"{index} has no weight_map from names to files.")
    files = sorted(set(where.values()))
    outside = [f for f in files if not is_name(f)]
    if outside:
        name = errors.safe_repr(outside[0])
        raise UserError(f"{index} names {name}, which is not a file in its own folder.")
    absent = [f for f in files if not (index.parent / f).is_file()]
    if absent:
        raise UserError(
            f"{index} names {errors.shorten(', '.join(absent))}, which is not there: get all parts."
        )
    parts = {f: _arrays(index.parent / f) for f in files}
    lost = [f"{name} in {f}" for name, f in where.items() if name not in parts[f][1]]
    if lost:
        shown = errors.shorten(", ".join(lost))
        raise UserError(f"{index} names arrays that are not there: {shown}.")
    if not files:
        raise UserError(f"{index} names no files.")
    kind, _, note = parts[files[0]]
    return kind, {name: parts[f][1][name] for name, f in where.items()}, note
