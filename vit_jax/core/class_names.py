"""Names of classes: when two are the same, and in what two lists of them differ.

macOS gives the names of folders decomposed (NFD: an e and its accent), lists and other systems have
them composed (NFC). They look the same, so they are the same: names are compared as NFC.
"""

import unicodedata
from collections.abc import Iterable, Sequence

from vit_jax.core.errors import UserError

_NO_TEXT = ("Cc", "Cs", "Zl", "Zp")  # of Unicode's categories


def normal(name: str) -> str:
    """The name as it is compared: composed, Unicode's NFC."""
    return unicodedata.normalize("NFC", name)


def printable(name: str) -> str:
    """The name with what is no text of one line escaped: line breaks, controls, lone surrogates.

    >>> printable("cat\\n")
    'cat\\\\n'
    """
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in _NO_TEXT else c
        for c in name
    )


def printable_lines(text: str) -> str:
    """Lines for a terminal, which would run the escape codes of a file's name: they are escaped."""
    return "\n".join(map(printable, text.split("\n")))


def normal_names(names: Iterable[str], where: str) -> dict[str, str]:
    """The names by their normal forms, in this order. Raises UserError if two are the same."""
    found: dict[str, str] = {}
    for name in names:
        if (other := found.setdefault(normal(name), name)) != name:
            both = f"{other!a} and {name!a}"
            rule = f"has {normal(name)} in two encodings of Unicode, {both}: rename one."
            raise UserError(rule, field=where)
    return found


def are_same(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Returns whether these are the same classes in the same order."""
    return list(map(normal, ours)) == list(map(normal, theirs))


def placeholder(number: int) -> str:
    """Hugging Face's name for a class without one: "LABEL_3"."""
    return f"LABEL_{number}"


def agree(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Returns whether these are the same classes in the same order, as far as both have names."""
    return len(ours) == len(theirs) and all(
        normal(a) == normal(b) or placeholder(i) in (a, b)
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True))
    )


def difference(ours: Sequence[str], theirs: Sequence[str]) -> str:
    """The first class in which two lists differ, as part of a sentence; "" if they are the same.

    >>> difference(["cat", "dog"], ["cat", "cow"])
    "'dog' is not among the others, which have 'cow'"
    """
    ours, theirs = list(map(normal, ours)), list(map(normal, theirs))
    lacking = [name for name in ours if name not in set(theirs)]
    further = [name for name in theirs if name not in set(ours)]
    if lacking:
        others = f", which have {further[0]!r}" if further else ""
        return f"{lacking[0]!r} is not among the others{others}"
    if further:
        return f"{further[0]!r} is only among the others"
    for number, (name, other) in enumerate(zip(ours, theirs, strict=False)):
        if name != other:
            return f"class {number} is {name!r}, and {other!r} among the others"
    return ""
