"""A SLURM cluster of one node on this machine: Debian's packages slurm-wlm and munge, run as root.

Its node has two GPUs, as far as SLURM knows. Jobs of the partition "urgent" preempt those of the
usual one.
"""

import contextlib
import os
import shutil
import socket
import subprocess

from tests.processes import free_port, wait_for

START_SECS = 60

CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 Gres=gpu:2
PartitionName=usual Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=2
"""


def is_installed():
    """Returns whether a cluster can be started here."""
    programs = ("slurmctld", "slurmd", "munged", "sbatch")
    return os.geteuid() == 0 and all(map(shutil.which, programs))


@contextlib.contextmanager
def cluster(folder):
    """Context with a cluster that waits for jobs: the variables by which programs find it."""
    host = socket.gethostname().partition(".")[0]
    variables = {"SLURM_CONF": str(folder / "slurm.conf")}
    ports = [free_port(), free_port()]
    (folder / "slurm.conf").write_text(CONFIG.format(host=host, folder=folder, ports=ports))
    (folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    files = [f"--{kind}-file={folder}/munge.{kind}" for kind in ("key", "pid", "seed", "log")]
    with contextlib.ExitStack() as started:

        def start(*command):
            log = started.enter_context((folder / f"{command[0]}.log").open("wb"))
            process = subprocess.Popen(
                command, env=os.environ | variables, stdout=log, stderr=subprocess.STDOUT
            )
            started.callback(process.wait)
            started.callback(process.terminate)

        start("munged", "--foreground", "--force", *files, f"--socket={folder}/munge.socket")
        wait_for((folder / "munge.socket").exists, START_SECS)
        start("slurmctld", "-D")
        start("slurmd", "-D")
        wait_for(
            lambda: "idle" in answer("sinfo", "--noheader", "--format=%T", **variables), START_SECS
        )
        yield variables


def answer(*command, **variables):
    """The output of a program."""
    done = subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    return done.stdout
