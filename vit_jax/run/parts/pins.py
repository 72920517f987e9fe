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
from vit_jax.core.errors import UserError
from vit_jax.store import workdir as workdirs

FIELDS = (("init", "weights"), ("method", "teacher"))
RECORD = "weights"  # of a start: {name: pinned name}


def named(config: RunConfig) -> dict[tuple[str, str], str]:
    """The fields that name weights to fetch, and the names. UserError for one with a mistake."""
    found = {}
    for section, field in FIELDS:
        value = getattr(getattr(config, section), field, None) or ""
        try:
            if weights.is_name(value):
                found[section, field] = value
        except UserError as error:
            raise of_field(f"{section}.{field}", value, error) from error
    return found


def pinned(config: RunConfig, folder: epath.Path, peers: Peers) -> RunConfig:
    """The config with pinned names: as the run in `folder` began, else as they are fetched now.

    All processes get those of the first. UserError for what cannot be fetched.
    """
    names = named(config)
    if not names:
        return config
    before = _recorded(folder)
    found = {}
    for (section, field), name in names.items():
        try:
            found[name] = before.get(name) or str(weights.fetch(name))
        except UserError as error:
            raise of_field(f"{section}.{field}", name, error) from error
    found = peers.from_first("after weights were fetched", found)
    sections: dict[str, Any] = {}
    for (section, field), name in names.items():
        now = sections.get(section, getattr(config, section))
        sections[section] = dataclasses.replace(now, **{field: found[name]})
    return dataclasses.replace(config, **sections)


def pins(given: RunConfig, pinned: RunConfig) -> dict[str, Any]:
    """What a start records of its names; {} if it has none."""
    after = named(pinned)
    found = {name: after[where] for where, name in named(given).items()}
    return {RECORD: found} if found else {}


def of_field(field: str, value: str, error: UserError) -> UserError:
    """The error, with the field in front; messages about a name begin with it."""
    return UserError(f"{field}={value}: {str(error).removeprefix(f'{value}: ')}")


def _recorded(folder: epath.Path) -> dict[str, str]:
    """What names meant at earlier starts in the folder, the newest last."""
    if not (folder / workdirs.CONFIG_FILE).exists():
        return {}
    found: dict[str, str] = {}
    for start in workdirs.read_document(folder)["runs"]:
        found |= start.get(RECORD, {}) if isinstance(start, dict) else {}
    return found
