import pytest
from jax._src.clusters import cloud_tpu_cluster

from tests.messages import refused
from vit_jax.cluster.members import Cluster, find_cluster

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "node[007-010],big3",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}
GKE = {"TPU_WORKER_HOSTNAMES": "a-0,a-1,a-2,a-3", "TPU_WORKER_ID": "2"}
SECOND_SLICE = {
    "MEGASCALE_NUM_SLICES": "2",
    "MEGASCALE_SLICE_ID": "1",
    "MEGASCALE_COORDINATOR_ADDRESS": "slice0-host0:8080",
}
# A Cloud TPU VM's metadata server.
VM = {
    "agent-worker-number": "1",
    "worker-network-endpoints": "x:y:10.0.0.5,x:y:10.0.0.6",
    "tpu-env": "ACCELERATOR_TYPE: 'v4-16'",
}


def given(coordinator=None, num_processes=None, process_id=None):
    return find_cluster(coordinator, num_processes, process_id, timeout_secs=1)


@pytest.fixture
def tpu_vm(monkeypatch):
    monkeypatch.setattr(cloud_tpu_cluster, "running_in_cloud_tpu_vm", True)
    resolve = "jax._src.clusters.cloud_tpu_cluster.socket.gethostbyname"
    monkeypatch.setattr(resolve, lambda name: "10.0.0.1")
    monkeypatch.setattr(cloud_tpu_cluster, "get_metadata", lambda key: (VM[key], 200))


def environment(monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_flags():
    assert given("host:123", 4, 2) == Cluster("host:123", 4, 2)
    assert (given("[::1]:123", 4, 2).host, given("[::1]:123", 4, 2).port) == ("::1", 123)


def test_one_process_is_alone(monkeypatch):
    assert given() is None
    assert given("host:123", 1, 0) is None
    environment(monkeypatch, SLURM)
    assert given(num_processes=1) is None


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (("host:1",), ["--num_processes", "--process_id"]),
        ((None, 2, 1), ["--coordinator"]),
        (("host:1", 2, 2), ["--process_id=2", "--num_processes=2"]),
        (("host:1", 0, 0), ["--num_processes=0"]),
        (("host", 2, 0), ["--coordinator=host"]),
    ],
)
def test_contradictory_flags_are_refused(flags, names):
    with refused(*names):
        given(*flags)


def test_slurm(monkeypatch):
    environment(monkeypatch, SLURM)
    cluster = given()
    assert cluster == Cluster(cluster.coordinator, 8, 3, [1])
    assert cluster.host == "node007"


def test_gke(monkeypatch, tpu_vm):
    environment(monkeypatch, GKE)
    assert given() == Cluster("a-0:8482", 4, 2)


def test_gke_with_two_slices(monkeypatch, tpu_vm):
    environment(monkeypatch, GKE | SECOND_SLICE)
    assert given() == Cluster("slice0-host0:8482", 8, 6)


def test_cloud_tpu_vm(monkeypatch, tpu_vm):
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY", raising=False)
    assert given() == Cluster("10.0.0.5:8482", 2, 1)


def test_an_incomplete_cluster_is_refused(monkeypatch):
    environment(monkeypatch, {**SLURM, "SLURM_PROCID": "first"})
    with refused("--num_processes"):
        given()
