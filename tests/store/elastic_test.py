"""A checkpoint of any mesh and number of processes restores on any other, to the same bits."""

import json

import pytest

from tests.processes import free_port

# A mesh is (data, fsdp, tensor, shard_optimizer).
ONE = (1, 1, 1, False)
ALL_THREE = (2, 2, 2, False)
ZERO_1 = (4, 2, 1, True)
MESHES_OF_8 = [
    ONE, (2, 1, 1, False), (8, 1, 1, False), (8, 1, 1, True), (1, 4, 1, False), (1, 8, 1, False),
    (1, 1, 2, False), (2, 1, 2, True), (1, 4, 2, False), ALL_THREE, ZERO_1,
]  # fmt: skip

PROGRAM = """
import functools, json, sys, zlib
import jax

task = json.loads(sys.argv[1])
if task["processes"] > 1:
    jax.distributed.initialize(task["address"], task["processes"], task["index"])
import numpy as np
import tensorstore
from etils import epath
from vit_jax.run.parts import inputs, networks, updates
from vit_jax import config as configs
from vit_jax.core import pytrees
from vit_jax.store import array_files
from vit_jax.store.checkpoints import Checkpoints
from vit_jax.run.parts.durations import make_durations

array_files.CHUNK_BYTES = task["chunk_bytes"]
directory = epath.Path(task["directory"])

@functools.cache
def layout_on(data, fsdp, tensor, shard_optimizer):
    width = task["width"]
    config = configs.resolve(
        {"model": {"name": "ViT-Ti/4", "depth": 2, "width": width, "mlp_dim": 2 * width,
                   "num_heads": 2, "pre_logits": True},
         "input": {"preprocess": "decode|resize(8)"}, "optim": {"ema_decay": 0.9, "lr": 1e-3},
         "total": {"steps": 2}, "mesh": {"data": data, "fsdp": fsdp, "tensor": tensor,
                                         "shard_optimizer": shard_optimizer}}, [])
    model = networks.model(config, num_classes=4)
    plan = make_durations(config, num_examples=64)
    schedule = updates.schedule(config.optim, plan)
    return updates.layout(config, model.make, schedule, inputs.mesh(config.mesh)).state

def content(name, x):  # as bits: not every pattern is a number
    bits = np.random.default_rng(zlib.crc32(name.encode())).bytes(x.size * x.dtype.itemsize)
    return np.frombuffer(bits, x.dtype).reshape(x.shape)

def opened():
    return Checkpoints(directory, keep_last=1, keep_every_steps=None, best_metric=None,
                       best_mode="max")

def save(step, layout):
    fill = lambda n, x: jax.make_array_from_callback(
        x.shape, x.sharding, lambda index, whole=content(n, x): whole[index])
    checkpoints = opened()
    checkpoints.save(step, pytrees.map_named(fill, layout), {}, None)
    checkpoints.close()

def bytes_read():
    metrics = tensorstore.experimental_collect_matching_metrics
    read = metrics("/tensorstore/kvstore/file/bytes_read")  # none before the first read
    return sum(metric["values"][0]["value"] for metric in read)

def restore(layout):
    before, checkpoints = bytes_read(), opened()
    state = checkpoints.restore(layout)
    read = bytes_read() - before
    checkpoints.close()
    wanted, restored = pytrees.flatten(layout), pytrees.flatten(state)
    assert list(wanted) == list(restored)
    for name, x in restored.items():
        assert x.sharding.is_equivalent_to(wanted[name].sharding, x.ndim), name
        whole = content(name, x)
        for shard in x.addressable_shards:
            assert np.asarray(shard.data).tobytes() == whole[shard.index].tobytes(), name
    return read

read = []
for step, (mesh, others) in enumerate(task["saved_and_restored"], task["first_step"]):
    if mesh is not None:
        save(step, layout_on(*mesh))
    read += [restore(layout_on(*other)) for other in others]
shapes = jax.tree.leaves(layout_on(*(others[-1] if others else mesh)))
total = sum(x.size * x.dtype.itemsize for x in shapes)
print(json.dumps({"read": read, "total": total}))
"""


@pytest.fixture
def run(tmp_path, start_python):
    """`run(processes, devices, saved_and_restored)`: the output of each process."""
    first_step = 0

    def run(processes, devices, saved_and_restored, *, width=16, chunk_bytes=2**24):
        nonlocal first_step
        task = {
            "directory": str(tmp_path / "checkpoints"),
            "processes": processes,
            "address": f"localhost:{free_port()}",
            "saved_and_restored": saved_and_restored,
            "first_step": first_step,
            "width": width,
            "chunk_bytes": chunk_bytes,
        }
        outputs = [tmp_path / f"output {first_step}.{index}" for index in range(processes)]
        first_step += len(saved_and_restored)
        started = [
            start_python(output, "-c", PROGRAM, json.dumps({**task, "index": i}), devices=devices)
            for i, output in enumerate(outputs)
        ]
        printed = []
        for process, output in zip(started, outputs, strict=True):
            assert process.wait(300) == 0, output.read_text()
            (line,) = [x for x in output.read_text().splitlines() if x.startswith('{"read"')]
            printed.append(json.loads(line))
        return printed

    return run


def test_data_fsdp_and_tensor_to_one_device_and_back(run):
    run(1, 8, [(ALL_THREE, [ONE, ZERO_1]), (ONE, [ALL_THREE])])


@pytest.mark.slow
def test_every_mesh_of_up_to_8_devices_to_every_other(run):
    run(1, 8, [(mesh, MESHES_OF_8) for mesh in MESHES_OF_8])


def test_two_processes_to_one(run):
    run(2, 2, [((2, 2, 1, True), [])])
    run(1, 4, [(None, [(1, 2, 2, False)])])


@pytest.mark.slow
def test_processes_and_devices_of_every_number(run):
    """Saved by one group of processes, restored by the next, which saves it again."""
    groups = [(2, 4, ALL_THREE), (4, 2, (1, 4, 2, False)), (1, 1, ONE), (2, 2, (4, 1, 1, True))]
    first = True
    for processes, devices, mesh in groups:
        restored = [] if first else [(None, [mesh])]
        run(processes, devices, [*restored, (mesh, [])])
        first = False


# Besides half of the arrays: small replicated ones, and orbax's own tables.
MAX_SHARE_READ_BY_ONE_OF_TWO = 0.56


@pytest.mark.slow
@pytest.mark.parametrize("saved_by", ["one device", "the same mesh"])
def test_a_process_reads_only_its_part(run, saved_by):
    """Even arrays that were saved replicated are stored in pieces."""
    sizes = {"width": 256, "chunk_bytes": 2**16}
    halves = (1, 2, 1, False)
    if saved_by == "one device":
        run(1, 1, [(ONE, [])], **sizes)
        outputs = run(2, 1, [(None, [halves])], **sizes)
    else:
        outputs = run(2, 1, [(halves, [halves])], **sizes)
    for process in outputs:
        (read,) = process["read"]
        assert 0.4 < read / process["total"] < MAX_SHARE_READ_BY_ONE_OF_TWO, process
