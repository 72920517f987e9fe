import pytest

from vit_jax.core.errors import UserError
from vit_jax.tools.plan import topology


@pytest.mark.parametrize("name", ["v5e:16x16", "v3:2x2", "v4:4x4x4", "v6e:1x1"])
def test_names(name):
    assert topology.check(name) == name.partition(":")[0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "v5:4x4",
            r"generation 'v5'. Did you mean .*v5e.* Valid: a100, .*v2, v3, v4, v5e, v5p, v6e",
        ),
        ("16x16", "generation '16x16'"),
        ("v5e", "nearest: v5e:1x1, "),
        ("v5e:big", "nearest: v5e:"),
        ("v5e:0x4", "nearest: v5e:"),
        ("v4:8x8", r"nearest: .*v4:4x4x4"),
        ("v5e:16x32", r"at most 256 chips. nearest: .*v5e:16x16"),
    ],
)
def test_what_does_not_exist_lists_the_nearest(name, message):
    with pytest.raises(UserError, match=message):
        topology.check(name)


def test_without_its_compiler_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(topology.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install libtpu"):
        topology.devices("v5e:2x2")
