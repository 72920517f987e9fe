"""Flags of a command that can run as several processes, and starting those processes."""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase

from absl import flags
from etils import epath

from vit_jax import config as configs
from vit_jax.cluster import cluster, start
from vit_jax.cluster.cluster import Cluster
from vit_jax.cluster.peers import Peers
from vit_jax.config import RunConfig
from vit_jax.core.errors import UserError
from vit_jax.store.workdir import differences

# Fields in which processes may differ; "*" is any name.
OF_A_HOST = (
    "input.threads", "input.data_dir", "input.mixture.*.data_dir", "input.cache",
    "input.cache_bytes",
)  # fmt: skip
TIMEOUTS = ("start_timeout_secs", "peer_timeout_secs", "barrier_timeout_secs")
MAX_TIMEOUT_SECS = 1_000_000
FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines flags that differ from process to process, and so are not fields of a config."""
    flags.DEFINE_string(
        "coordinator",
        None,
        "HOST:PORT of process 0, with a free port. Cloud TPU, GKE and SLURM say this and the "
        "next two by themselves.",
    )
    flags.DEFINE_integer("num_processes", None, "How many processes train together.")
    flags.DEFINE_integer("process_id", None, "Which of them this is, from 0.")
    flags.DEFINE_float("start_timeout_secs", 300, "How long to wait until all of them are there.")
    flags.DEFINE_float(
        "peer_timeout_secs", 60, "A process without a sign of life for so long counts as lost."
    )
    flags.DEFINE_float(
        "barrier_timeout_secs",
        600,
        "How long processes wait for the last before they save, restore or evaluate.",
    )


def find() -> Cluster | None:
    """Finds the processes of this run; None: this one alone. UserError for wrong flags."""
    for name in TIMEOUTS:
        secs = getattr(FLAGS, name)
        if not 1 <= secs <= MAX_TIMEOUT_SECS:  # also NaN
            raise UserError(
                f"--{name}={secs:g}: give at least 1 and at most {MAX_TIMEOUT_SECS:,} seconds."
            )
    return cluster.find(
        FLAGS.coordinator,
        FLAGS.num_processes,
        FLAGS.process_id,
        timeout_secs=FLAGS.start_timeout_secs,
    )


def together(cluster: Cluster | None) -> AbstractContextManager[Peers]:
    """Connects the processes; see cluster/start.py."""
    return start.together(
        cluster,
        start_timeout_secs=FLAGS.start_timeout_secs,
        peer_timeout_secs=FLAGS.peer_timeout_secs,
        barrier_timeout_secs=FLAGS.barrier_timeout_secs,
    )


def check_same(
    peers: Peers, config: RunConfig, workdir: epath.Path, options: Mapping[str, bool]
) -> None:
    """UserError, with a list, unless all processes have the same values as the first.

    Otherwise they would wait for each other in different places, or train different models.
    options: the command's options, by their flags.
    """
    values = {"--workdir": str(workdir), **options, **configs.to_dict(config)}
    here = {"config": values, "fingerprint": {}}
    there = peers.from_first("before training", here)
    differing = differences(there, json.loads(json.dumps(here)))
    wrong = [
        text
        for name, text in differing.items()
        if not any(fnmatchcase(name, own) for own in OF_A_HOST)
    ]
    if wrong:
        raise UserError(
            f"{peers.me} was started with other values than {peers.members[0]}:\n  "
            + "\n  ".join(wrong)
            + "\nGive all processes the same command, but for --process_id."
        )
