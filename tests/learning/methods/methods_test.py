"""The methods' fields and their page."""

from pathlib import Path

import pytest

from vit_jax.core.schema import fields
from vit_jax.learning.methods import METHODS, SUPERVISED, find

PAGE = Path(__file__).parents[3] / "docs" / "methods.md"
KINDS = [kind for kind in METHODS if kind != SUPERVISED]


def test_the_page_has_the_rows_of_the_declarations(request):
    """--regenerate_goldens writes them."""
    page = expected = PAGE.read_text()
    for kind in KINDS:
        rows = "".join(
            f"| `{name}` | `{getattr(find(kind)(), name)!r}` | {about.doc} |\n"
            for name, about in fields.of(find(kind)).items()
            if about.doc
        )
        before, found, rest = expected.partition(f"\n### `{kind}`")
        assert found, f"docs/methods.md has no section {kind}"
        section, heading, after = rest.partition("\n### `")
        text, head, table = section.partition("|---|---|---|\n")
        assert head, kind
        _, _, behind = table.partition("\n\n")
        expected = f"{before}{found}{text}{head}{rows}\n{behind}{heading}{after}"
    if request.config.getoption("regenerate_goldens"):
        PAGE.write_text(expected)
    assert page == expected, "pytest tests/learning/methods/methods_test.py --regenerate_goldens"


@pytest.mark.parametrize("kind", METHODS)
def test_a_method_is_called_by_its_kind(kind):
    assert find(kind)().kind == kind
