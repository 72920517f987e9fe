"""Several data sets as one source."""

from collections.abc import Mapping, Sequence

import numpy as np

from vit_jax.core.errors import UserError
from vit_jax.data.source import Example, Source, digest


class MixtureSource(Source):
    """The examples of all components, one component behind the other, by the order of names."""

    def __init__(self, components: Mapping[str, Source]) -> None:
        """UserError unless all have the same classes: labels are taken as they are."""
        self._names = sorted(components)
        self._parts = [components[name] for name in self._names]
        _check_classes(self._names, self._parts)
        self.sizes = np.array([part.num_examples for part in self._parts], np.int64)
        self._ends = np.cumsum(self.sizes)
        self.name = " + ".join(self._names)
        self.num_examples = int(self._ends[-1])
        self.num_classes = self._parts[0].num_classes
        named = [part.class_names for part in self._parts if part.class_names]
        self.class_names = named[0] if named else None
        self.max_labels = max(part.max_labels for part in self._parts)
        self.weighted = any(part.weighted for part in self._parts)
        self.fingerprint = digest("\n".join(part.fingerprint for part in self._parts))

    def read(self, indices: np.ndarray) -> list[Example]:
        """Reads the examples component by component."""
        examples: dict[int, Example] = {}
        parts, places = self._locate(indices)
        for part in np.unique(parts):
            wanted = np.flatnonzero(parts == part)
            read = self._parts[part].read(places[wanted])
            examples.update(zip(wanted.tolist(), read, strict=True))
        return [examples[i] for i in range(len(indices))]

    def describe(self, index: int) -> str:
        """The location that the component gives."""
        parts, places = self._locate(np.array([index]))
        return f"{self._names[parts[0]]}: {self._parts[parts[0]].describe(int(places[0]))}"

    def _locate(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(components, indices in them), int64 [n] each."""
        parts = np.searchsorted(self._ends, indices, side="right")
        return parts, indices - (self._ends - self.sizes)[parts]


def _check_classes(names: Sequence[str], parts: Sequence[Source]) -> None:
    for name, part in zip(names, parts, strict=True):
        for other_name, other in zip(names, parts, strict=True):
            named = part.class_names and other.class_names
            if part.num_classes != other.num_classes:
                difference = f"{part.num_classes:,} and {other.num_classes:,}"
            elif named and part.class_names != other.class_names:
                difference = "not the same names, or not in the same order"
            else:
                continue
            raise UserError(
                f"input.mixture: {name} and {other_name} have other classes: {difference}. Labels "
                "are not translated; prepare the data sets with one list of classes."
            )
