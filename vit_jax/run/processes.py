"""Starting the processes of a command that can run as several, as its flags say."""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase

from absl import flags
from etils import epath

from vit_jax import config as configs
from vit_jax.cluster import rendezvous, start
from vit_jax.cluster.peers import Peers
from vit_jax.cluster.rendezvous import Cluster
from vit_jax.config import RunConfig
from vit_jax.core.errors import UserError
from vit_jax.store.workdir import differences

# Fields in which processes may differ; "*" is any name.
HOST_FIELDS = (
    "input.threads", "input.data_dir", "input.mixture.*.data_dir", "input.cache",
    "input.cache_bytes", "input.pseudo_labels", "input.mixture.*.pseudo_labels",
)  # fmt: skip
TIMEOUTS = ("start_timeout_secs", "peer_timeout_secs", "barrier_timeout_secs")
MAX_TIMEOUT_SECS = 1_000_000
FLAGS = flags.FLAGS


def find_cluster() -> Cluster | None:
    """Finds the processes of this run; None: this one alone. Raises UserError for wrong flags."""
    for name in TIMEOUTS:
        secs = getattr(FLAGS, name)
        if not 1 <= secs <= MAX_TIMEOUT_SECS:  # also NaN
            raise UserError(
                f"--{name}={secs:g}: give at least 1 and at most {MAX_TIMEOUT_SECS:,} seconds."
            )
    return rendezvous.find_cluster(
        FLAGS.coordinator,
        FLAGS.num_processes,
        FLAGS.process_id,
        timeout_secs=FLAGS.start_timeout_secs,
    )


def connect_processes(cluster: Cluster | None) -> AbstractContextManager[Peers]:
    """Connects the processes; see cluster/start.py."""
    return start.connect_processes(
        cluster,
        start_timeout_secs=FLAGS.start_timeout_secs,
        peer_timeout_secs=FLAGS.peer_timeout_secs,
        barrier_timeout_secs=FLAGS.barrier_timeout_secs,
    )


def check_same(
    peers: Peers,
    config: RunConfig,
    workdir: epath.Path,
    options: Mapping[str, bool],
    when: str = "before training",
) -> None:
    """UserError, with a list, unless all processes have the same values as the first.

    Otherwise they would wait for each other in different places, or train different models.
    options: the command's options, by their flags. when: names the barrier.
    """
    values = {"--workdir": str(workdir), **options, **configs.to_dict(config)}
    here = {"config": values, "fingerprint": {}}
    there = peers.from_first(when, here)
    differing = differences(there, json.loads(json.dumps(here)))
    wrong = [
        text
        for name, text in differing.items()
        if not any(fnmatchcase(name, pattern) for pattern in HOST_FIELDS)
    ]
    if wrong:
        raise UserError(
            f"{peers.me} was started with other values than {peers.members[0]}:\n  "
            + "\n  ".join(wrong)
            + "\nGive all processes the same command, but for --process_id."
        )


def check_same_files(peers: Peers, here: Mapping[str, Sequence[str]]) -> None:
    """UserError unless this process finds the data and weights that the first one has.

    here: fingerprints by the fields or flags that name the files.
    """
    there = peers.from_first("comparing data and weights", here)
    if others := [name for name in here if here[name] != there.get(name)]:
        raise UserError(
            f"{peers.me} finds other images, names, labels or weights than {peers.members[0]} for "
            f"{', '.join(others)}. Give all hosts copies of the same files, or a folder that all "
            "of them see."
        )
