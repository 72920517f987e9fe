"""Starting the processes of a command that can run as several, as its flags say."""

import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase

import jax
from absl import flags
from etils import epath

from vit_jax import config as configs
from vit_jax.cluster import members
from vit_jax.cluster.members import SAME_SECRET, Cluster, OtherSecret
from vit_jax.cluster.peers import Peers
from vit_jax.config import RunConfig
from vit_jax.core.errors import UserError
from vit_jax.core.schema import config_file
from vit_jax.core.screen import Screen
from vit_jax.store import workdir as workdirs

# Fields in which processes may differ; "*" is any name.
HOST_FIELDS = (
    "input.threads", "input.data_dir", "input.mixture.*.data_dir", "input.cache",
    "input.cache_bytes", "input.pseudo_labels", "input.mixture.*.pseudo_labels",
)  # fmt: skip
SECRET_VARIABLE = "VIT_JAX_SECRET"
SECRET_FILE = ".secret"
MIN_SECRET_BYTES = 32
FLAGS = flags.FLAGS


def find_cluster() -> Cluster | None:
    """Finds the processes of this run; None: this one alone. Raises UserError for wrong flags."""
    return members.find_cluster(
        FLAGS.coordinator,
        FLAGS.num_processes,
        FLAGS.process_id,
        timeout_secs=FLAGS.start_timeout_secs,
    )


def connect_processes(
    cluster: Cluster | None, workdir: epath.Path | None = None
) -> AbstractContextManager[Peers]:
    """Connects the processes; see cluster/start.py. They find the run's secret in its workdir."""
    if cluster is None:
        return nullcontext(Peers.alone())
    from vit_jax.cluster import start

    return start.connect_processes(
        cluster,
        lambda: run_secret(workdir, create=cluster.process_id == 0),
        start_timeout_secs=FLAGS.start_timeout_secs,
        peer_timeout_secs=FLAGS.peer_timeout_secs,
        barrier_timeout_secs=FLAGS.barrier_timeout_secs,
    )


def run_secret(workdir: epath.Path | None, *, create: bool) -> bytes:
    """The secret by which the processes of a run know each other; b"" where none is set.

    VIT_JAX_SECRET, else a file of the work directory that only its owner may read.
    """
    if SECRET_VARIABLE in os.environ or workdir is None:
        return os.environ.get(SECRET_VARIABLE, "").encode()
    file = workdir / SECRET_FILE
    try:
        if len(content := file.read_bytes()) >= MIN_SECRET_BYTES:
            return content
        reason = "it is too short"
    except OSError as error:  # there is none, or it is another user's
        reason = error.strerror or str(error)
    if not create:
        raise OtherSecret(
            f"{file}, where process 0 leaves the run's secret, cannot be read: {reason}. "
            f"{SAME_SECRET}."
        )
    workdirs.make(workdir)
    content = secrets.token_hex(MIN_SECRET_BYTES).encode()
    workdirs.save(file, content, private=True)
    return content


def same_config(
    peers: Peers, given: RunConfig, workdir: epath.Path, options: Iterable[str]
) -> RunConfig:
    """The config `given` with its file's adapt(), which may ask for weights, data and devices.

    UserError unless all processes have the same values, of these flags too.
    """
    values = {f"--{name}": getattr(FLAGS, name) for name in options}
    values["--config adapts itself"] = config_file.adapt(FLAGS.config) is not None
    check_same(peers, given, workdir, values)
    if not values["--config adapts itself"]:
        return given
    from vit_jax.run import adapt, announce
    from vit_jax.run.folders import check_folders

    # Each process checks one that cannot be adapted by itself: others may be able to.
    config = adapt.load(
        FLAGS.config,
        FLAGS.config_override,
        workdir=workdir,
        check=lambda unadapted: check_folders(unadapted, workdir),
    )
    check_same(peers, config, workdir, values, "after adapting the config")
    announce.adapted(Screen(quiet=jax.process_index() > 0), given, config)
    return config


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
    differing = workdirs.differences(there, json.loads(json.dumps(here)))
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
    """UserError unless this process finds the data and weights that the first one has."""
    there = peers.from_first("comparing data and weights", here)
    if others := [name for name in here if here[name] != there.get(name)]:
        raise UserError(
            f"{peers.me} finds other images, names, labels or weights than {peers.members[0]} for "
            f"{', '.join(others)}."
        )
