"""Strings of ops, parsed but not run: "decode|inception_crop(224, area_min=0.1)|flip_lr"."""

import ast
from typing import Any, NamedTuple

from vit_jax.core.errors import UserError


class Call(NamedTuple):
    """One op as written: its name, and its arguments, which are literals."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    text: str

    def argument(self, place: int, name: str) -> Any:
        """An argument by position or by name; None if it was not given."""
        return self.args[place] if place < len(self.args) else self.kwargs.get(name)


def parse(text: str, *, field: str) -> list[Call]:
    """The ops of a string in order. UserError for an op that is not a name with literals.

    `field` is the config field that holds it, for messages.
    """
    where = f"{field}={text!r}"
    return [_parse_call(part.strip(), where) for part in text.split("|")]


def _parse_call(part: str, where: str) -> Call:
    try:
        call = ast.parse(part, mode="eval").body
        if isinstance(call, ast.Name):
            return Call(call.id, (), {}, part)
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            raise SyntaxError
        args = tuple(ast.literal_eval(a) for a in call.args)
        kwargs = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError(
            f"{where}: {part!r} is not an op. Write a name, or a name and literals in "
            "parentheses, with | between ops: decode|inception_crop(224)|flip_lr."
        ) from error
    if len(kwargs) < len(call.keywords):
        raise UserError(f"{where}: {part!r} gives an argument twice; give it once.")
    return Call(call.func.id, args, kwargs, part)
