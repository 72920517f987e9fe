"""The weights that a run names (hf:google/vit-base-patch16-224), pinned.

A branch may move on while a run is under way, or between two starts of it. So every start looks up
what commit, or what file, a name means, and records that in config.json; a later one takes it from
there.
"""

import dataclasses
from typing import Any

from etils import epath

from vit_jax import weights
from vit_jax.cluster.peers import Peers
from vit_jax.config import RunConfig
from vit_jax.core.errors import naming
from vit_jax.store import workdir as workdirs

FIELDS = (("init", "weights"), ("method", "teacher"))
RECORD = "weights"  # of a start: {name: pinned name}


def named_weights(config: RunConfig) -> dict[tuple[str, str], str]:
    """Names of weights to fetch, by field. Raises UserError for a malformed one."""
    found = {}
    for section, field in FIELDS:
        value = getattr(getattr(config, section), field, None) or ""
        with naming(f"{section}.{field}", value):
            if value and weights.is_name(value):
                found[section, field] = value
    return found


def pin_weights(config: RunConfig, folder: epath.Path, peers: Peers) -> RunConfig:
    """The config with pinned names: as the run in `folder` began, else as they are fetched now.

    All processes get those of the first. Raises UserError for what cannot be fetched.
    """
    names = named_weights(config)
    if not names:
        return config
    before = _earlier_pins(folder)
    found = {}
    for (section, field), name in names.items():
        with naming(f"{section}.{field}", name):
            found[name] = before.get(name) or str(weights.fetch(name))
    found = peers.from_first("after weights were fetched", found)
    sections: dict[str, Any] = {}
    for (section, field), name in names.items():
        now = sections.get(section, getattr(config, section))
        sections[section] = dataclasses.replace(now, **{field: found[name]})
    return dataclasses.replace(config, **sections)


def describe_pins(requested: RunConfig, pinned: RunConfig) -> dict[str, Any]:
    """The entry of a start in config.json for its names of weights; {} if it has none."""
    after = named_weights(pinned)
    found = {name: after[where] for where, name in named_weights(requested).items()}
    return {RECORD: found} if found else {}


def _earlier_pins(folder: epath.Path) -> dict[str, str]:
    """Pinned names of earlier starts in the folder, by name; the newest count."""
    if not (folder / workdirs.CONFIG_FILE).exists():
        return {}
    found: dict[str, str] = {}
    for start in workdirs.read_document(folder)["runs"]:
        found |= start.get(RECORD, {}) if isinstance(start, dict) else {}
    return found
