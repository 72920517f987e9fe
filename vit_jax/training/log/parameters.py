"""The table of a model's parameters."""

from typing import Any

import jax
from etils import epath


def write_parameters(workdir: epath.Path, params: Any) -> None:
    """parameters.txt: name, shape, type, size and sharding of every parameter, by clu."""
    from clu import parameter_overview

    if jax.process_index() == 0:
        table = parameter_overview.get_parameter_overview(params, include_stats="sharding")
        (workdir / "parameters.txt").write_text(f"{table}\n")
