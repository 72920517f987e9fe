"""Processes are threads here, which exchange the same messages."""

import errno
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from jax._src.clusters import cloud_tpu_cluster

from tests.messages import refused, told
from vit_jax.cluster import rendezvous
from vit_jax.cluster.rendezvous import Cluster, find_cluster, meet
from vit_jax.core.errors import PeerLost, UserError


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(rendezvous, "RETRY_SECS", 0.05)
    monkeypatch.setattr(rendezvous, "PORT_BUSY_SECS", 0.2)


@pytest.fixture
def port():
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


def all_meet(port, ids, sizes=(3, 3, 3, 3), timeout_secs=20.0):
    """Outcomes of the processes with these ids: a Meeting each, or an exception."""

    def one(i, size):
        try:
            return meet(Cluster(f"localhost:{port}", size, i), timeout_secs=timeout_secs)
        except (PeerLost, UserError) as error:
            return error

    with ThreadPoolExecutor() as threads:
        return list(threads.map(one, ids, sizes))


def test_processes_may_come_in_any_order(port):
    meetings = all_meet(port, [2, 0, 1])
    assert [m.process_id for m in meetings[0].members] == [0, 1, 2]
    assert meetings[0].members == meetings[1].members == meetings[2].members
    assert [sorted(m.connections) for m in meetings] == [[0], [1, 2], [0]]


def test_the_port_is_free_again_and_the_lines_stay(port):
    (first, second) = all_meet(port, [0, 1], sizes=(2, 2))
    with socket.create_server(("", port)):  # as JAX's own service does
        first.connections[1].send({"still": "here"})
        assert second.connections[0].receive() == [{"still": "here"}]


def test_a_missing_process_is_named_on_all(port):
    for error in all_meet(port, [0, 2], timeout_secs=0.5):
        assert isinstance(error, PeerLost)
        told(str(error), "process 1 of 3", "process 0 (", "process 2 (")


def test_without_process_0(port):
    (error,) = all_meet(port, [1], timeout_secs=0.3)
    assert isinstance(error, PeerLost)
    told(str(error), f"process 0 at localhost:{port}", "process 1", os.strerror(errno.ECONNREFUSED))


def test_a_name_that_does_not_resolve(monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with refused("nohost.invalid", error=PeerLost):
        meet(Cluster("nohost.invalid:9999", 2, 1), timeout_secs=0.1)


def test_a_duplicate_process_id_is_refused(port):
    for error in all_meet(port, [0, 1, 1]):
        assert isinstance(error, UserError)
        told(str(error), "--process_id=1")


def test_different_numbers_of_processes(port):
    for error in all_meet(port, [0, 1], sizes=(3, 2)):
        assert isinstance(error, UserError)
        told(str(error), "--num_processes=2", "process 0 (")


def test_a_restarted_process_replaces_the_one_that_ended(port):
    with ThreadPoolExecutor() as threads:
        first = threads.submit(all_meet, port, [0])
        with _connected(port) as early:
            early.sendall(b'{"member": [1, "host", 5], "num_processes": 3}\n')
        second, third = all_meet(port, [1, 2])
    assert first.result()[0].members == second.members == third.members


def test_another_program_at_the_port_is_ignored(port):
    with ThreadPoolExecutor() as threads:
        first = threads.submit(all_meet, port, [0], sizes=(2,))
        with _connected(port) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            (second,) = all_meet(port, [1], sizes=(2,))
    assert first.result()[0].members == second.members


def test_a_port_in_use_is_refused(port):
    with socket.create_server(("", port)):
        (error,) = all_meet(port, [0])
    assert isinstance(error, UserError)
    told(str(error), f"port {port}")


def _connected(port):
    while True:
        try:
            return socket.create_connection(("localhost", port))
        except OSError:
            time.sleep(0.01)


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
        (("host", 2, 0), ["--coordinator=host:"]),
        (("host:99999", 2, 0), ["--coordinator=host:99999"]),
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
