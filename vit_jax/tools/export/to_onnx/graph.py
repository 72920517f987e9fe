"""An ONNX graph under construction: its nodes, its constants, and the values between them.

It is plain Python; file.py makes the file of it.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.core.errors import UserError

Shape = tuple[Any, ...]  # of numbers and expressions of the number of images


class Node(NamedTuple):
    """One operation: names of what it takes and gives."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Value:
    """An array of JAX's program: a constant, or what a node gives.

    What is stored may have axes of 1 where `shape` has more: ONNX's operators broadcast as NumPy's.

    Attributes:
      shape: as in JAX's program.
      dtype: likewise.
      stored: the shape of what is stored, with as many axes as `shape`; or (), for a scalar.
      name: the node's result; "" for a constant.
      array: the constant; None for a node's result.
    """

    shape: Shape
    dtype: np.dtype
    stored: Shape
    name: str = ""
    array: np.ndarray | None = None

    @property
    def whole(self) -> np.ndarray | None:
        """The constant in its shape, if that is known."""
        static = all(isinstance(size, int) for size in self.shape)
        if self.array is None or not static:
            return None
        return np.broadcast_to(self.array, self.shape)


def constant(array: Any, shape: Shape | None = None) -> Value:
    """The value of an array; of `shape`, if the array has axes of 1 in its place."""
    array = np.asarray(array)
    return Value(array.shape if shape is None else shape, array.dtype, array.shape, array=array)


class Graph:
    """Nodes and constants, in the order in which they were added.

    Attributes:
      nodes: the operations.
      constants: arrays by name.
      inputs: name -> shape of each argument.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[str, np.ndarray] = {}
        self.inputs: dict[str, Shape] = {}
        self._named: dict[tuple[Any, ...], str] = {}  # small constants are kept once
        self._count = 0
        self._batch: tuple[Any, str] | None = None

    def argument(self, name: str, shape: Shape, dtype: Any) -> Value:
        """An input of the graph; its first axis is the number of images."""
        self.inputs[name] = shape
        value = Value(shape, np.dtype(dtype), shape, name)
        if not isinstance(shape[0], int):
            size = self.node("Shape", [name])
            first = self.node("Slice", [size, *map(self.integers, ([0], [1], [0]))])
            self._batch = shape[0], first
        return value

    def node(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Adds an operation with one result, and gives that one's name."""
        return self.nodes_of(operator, inputs, 1, **attributes)[0]

    def nodes_of(
        self, operator: str, inputs: Sequence[str], results: int, **attributes: Any
    ) -> tuple[str, ...]:
        """Likewise with several results."""
        self._count += 1
        names = tuple(
            f"{operator}_{self._count}" + (f"_{i}" if results > 1 else "") for i in range(results)
        )
        self.nodes.append(Node(operator, tuple(inputs), names, attributes))
        return names

    def named(self, array: np.ndarray) -> str:
        """The name of a constant."""
        key: tuple[Any, ...] = (id(array),)
        if array.size <= 64:
            key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._named:
            self._named[key] = f"constant_{len(self.constants)}"
            self.constants[self._named[key]] = array
        return self._named[key]

    def integers(self, numbers: Sequence[int]) -> str:
        """The name of a constant of ONNX's index type."""
        return self.named(np.array(numbers, np.int64))

    def stored(self, value: Value) -> str:
        """The name of what is stored of a value: for operators that broadcast."""
        return value.name if value.array is None else self.named(value.array)

    def full(self, value: Value) -> str:
        """The name of a value in its whole shape."""
        if value.stored == value.shape:
            return self.stored(value)
        whole = value.whole
        if whole is not None:
            return self.named(np.ascontiguousarray(whole))
        return self.node("Expand", [self.stored(value), self.sizes(value.shape)])

    def sizes(self, shape: Shape) -> str:
        """The name of a vector with the sizes of a shape, where one may be unknown."""
        parts = [self._size(size) for size in shape]
        return self.node("Concat", parts, axis=0) if len(parts) > 1 else parts[0]

    def _size(self, size: Any) -> str:
        if isinstance(size, int):
            return self.integers([size])
        factor = self.per_image(size)
        assert self._batch is not None
        if factor == 1:
            return self._batch[1]
        return self.node("Mul", [self._batch[1], self.integers([factor])])

    def per_image(self, size: Any) -> int:
        """How many times the number of images a size is."""
        assert self._batch is not None
        factor = size // self._batch[0]
        if not isinstance(factor, int) or factor * self._batch[0] != size:
            raise UserError(
                f"ONNX: a size of {size} depends on the number of images in a way that is not "
                "written: export to stablehlo."
            )
        return factor

    def reshape(self, value: Value, shape: Shape) -> Value:
        """The same numbers in another shape, in which one axis may be unknown."""
        whole = value.whole
        if whole is not None and all(isinstance(size, int) for size in shape):
            return constant(whole.reshape(shape))
        if value.stored == value.shape == shape:
            return value
        unknown = [size for size in shape if not isinstance(size, int)]
        assert len(unknown) <= 1, shape
        sizes = self.integers([size if isinstance(size, int) else -1 for size in shape])
        name = self.node("Reshape", [self.full(value), sizes])
        return Value(shape, value.dtype, shape, name)

    def transpose(self, value: Value, order: Sequence[int]) -> Value:
        """The axes in another order."""
        order = tuple(order)
        if order == tuple(range(len(value.shape))):
            return value
        shape = tuple(value.shape[axis] for axis in order)
        if value.stored == ():
            return dataclasses.replace(value, shape=shape)
        stored = tuple(value.stored[axis] for axis in order)
        if value.array is not None:
            return constant(np.ascontiguousarray(value.array.transpose(order)), shape)
        name = self.node("Transpose", [value.name], perm=list(order))
        return Value(shape, value.dtype, stored, name)


def product(sizes: Sequence[Any]) -> Any:
    """Of sizes, of which one may be unknown."""
    return math.prod(sizes)
