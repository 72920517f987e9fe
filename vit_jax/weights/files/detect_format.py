"""Opens a file of arrays, whose kind its first bytes tell, whatever its name is."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from vit_jax.core.errors import UserError, reading, safe_repr
from vit_jax.core.files import is_name
from vit_jax.weights.files import Tensor, Tensors, listed, npz, pytorch, safetensors

# The start of a file that Git LFS has put in place of a large one.
_LFS_POINTER = b"version https://git-lfs"
# Suffixes of files of weights, which are read by their path, or are of other kinds.
_ENDINGS = (
    *(".safetensors", ".npz", ".pth", ".pt", ".bin"),
    *(".msgpack", ".h5", ".onnx", ".gguf", ".jax_export"),
)
INDEX = ".index.json"  # behind the name of the file that was split into shards
_OPEN_CLIP = "open_clip_"  # prefix of OpenCLIP's files, whose folder may have others too
# In a folder, the first of these that exists is read.
FILES = (
    *(f"{name}{end}" for name in ("model.safetensors", "pytorch_model.bin") for end in ("", INDEX)),
    *(f"{_OPEN_CLIP}{end}" for end in ("model.safetensors", "pytorch_model.bin")),
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
        """Entries of config.json; none without it."""
        return self.config or {}


def is_external(path: Path) -> bool:
    """Returns whether `path` is a file, or a folder in the form of Hugging Face and timm."""
    with reading(path):  # a name may be too long
        return path.is_file() or any((path / name).is_file() for name in FILES)


def open_weights(path: Path) -> Opened:
    """Opens a file or folder; PyTorch's arrays are read at once, others on demand."""
    inside = (path / name for name in FILES if (path / name).is_file())
    file = next(inside) if path.is_dir() else path
    with reading(file):
        kind, tensors, note = (_sharded if file.name.endswith(INDEX) else _arrays)(file)
        if not tensors:
            raise ValueError("it holds no arrays")
    start = _OPEN_CLIP if file.name.startswith(_OPEN_CLIP) else ""
    beside = (file.parent / f"{start}config.json", file.parent / "preprocessor_config.json")
    config, preprocessor = (
        None if kind == "npz" or not f.is_file() else read_json(f) for f in beside
    )
    return Opened(path, kind, tensors, config, preprocessor, note)


def check_folder(folder: Path) -> None:
    """Raises UserError if a folder has files of weights, but none that is read by its folder."""
    names = sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []
    for name in [name for name in names if name.endswith(_ENDINGS)][:1]:
        cure = "Give the path of a file, or save the model as one of these."
        raise UserError(f"{folder} has none of {', '.join(FILES)}, but {name}.", cure=cure)


def read_json(file: Path) -> dict[str, Any]:
    """Reads a JSON object."""
    with reading(file), file.open("rb") as stream:
        _start(file)
        document = json.loads(stream.read(MAX_JSON_BYTES))
        if not isinstance(document, dict):
            raise ValueError("it is not a JSON object")
        return document


def _start(file: Path) -> bytes:
    with file.open("rb") as stream:
        start = stream.read(len(_LFS_POINTER))
    if start.startswith(_LFS_POINTER):
        raise ValueError("it is a pointer of Git LFS: run git lfs pull in its folder")
    return start


def _arrays(file: Path) -> tuple[str, dict[str, Tensor], str]:
    start = _start(file)
    if start[8:9] == b"{":
        return "safetensors", safetensors.read(file), ""
    if start[:4] == b"PK\x03\x04" and not pytorch.is_torch(file):
        return "npz", npz.read(file), ""
    if start[:1] == b"\x80" or start[:2] == b"PK":
        return "torch", *pytorch.read(file)
    raise ValueError("it begins like none of .npz, .safetensors and PyTorch's")


def _sharded(index: Path) -> tuple[str, dict[str, Tensor], str]:
    where: Any = read_json(index).get("weight_map")
    files = list(where.values()) if isinstance(where, dict) else []
    odd = [name for name in files if not (isinstance(name, str) and is_name(name))]
    if odd or not files:
        raise ValueError(f"no weight_map to files of its folder: {safe_repr(odd or where)}")
    parts = {}
    for name in sorted(set(files)):
        with reading(index.parent / name):
            parts[name] = _arrays(index.parent / name)
    lost = [f"{name} in {file}" for name, file in where.items() if name not in parts[file][1]]
    if lost:
        raise ValueError(f"arrays that are not there: {listed(lost)}")
    kind, _, note = parts[files[0]]
    return kind, {name: parts[file][1][name] for name, file in where.items()}, note
