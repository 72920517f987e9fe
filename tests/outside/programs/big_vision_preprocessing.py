"""big_vision's ops on given images, with given draws in place of random ones."""

import contextlib
import functools
import json
import sys
from unittest import mock

import numpy as np
import tensorflow as tf
from big_vision.pp import ops_general, ops_image  # noqa: F401  # which register their ops
from big_vision.pp.archive import autoaugment
from big_vision.pp.registry import Registry

inputs = dict(np.load(sys.argv[1]))
about = json.loads(str(inputs["about"]))
outputs = {name: data for name, data in inputs.items() if name.startswith("file_")}
files = [outputs[f"file_{i}"].tobytes() for i in range(len(outputs))]
decode_and_crop = tf.image.decode_and_crop_jpeg
sampler = tf.image.sample_distorted_bounding_box


def calls(ops):
    """The functions named by "decode|resize(8)"."""
    return [Registry.lookup(f"preprocess_ops.{op}")() for op in ops.split("|")]


@contextlib.contextmanager
def window(box):
    """Makes random windows this one: top, left, height, width."""
    if box is None:
        yield
        return
    top, left, height, width = box
    given = tf.constant([top, left, 0]), tf.constant([height, width, -1]), None
    with mock.patch.object(tf.image, "sample_distorted_bounding_box", lambda *_, **__: given):
        yield


for name, ops, file, box in about["cases"]:
    data = {"image": tf.constant(files[file])}
    exact = {"dct_method": "INTEGER_ACCURATE"} if name.startswith("precise") else {}
    with (
        window(box),
        mock.patch.object(
            tf.image, "decode_and_crop_jpeg", functools.partial(decode_and_crop, **exact)
        ),
    ):
        for op in calls(ops):
            data = op(data)
    outputs[name] = data["image"].numpy()

pixels = tf.io.decode_image(files[0])
(value_range,), (flip,) = calls("value_range(-1, 1)"), calls("flip_lr")
crop = outputs.get("central_crop 0", pixels)
outputs["value_range"] = value_range({"image": crop})["image"].numpy()
outputs["flips"] = np.stack([flip({"image": tf.constant(crop)})["image"] for _ in range(32)])

# The windows that it draws.
drawn = []
with mock.patch.object(
    tf.image,
    "sample_distorted_bounding_box",
    lambda *arguments, **more: drawn.append(sampler(*arguments, **more)) or drawn[-1],
):
    (crop,) = calls("inception_crop")
    tf.random.set_seed(0)
    for _ in range(about["draws"]):
        crop({"image": tf.zeros([*about["drawn_from"], 1], tf.uint8)})
windows = [[*begin.numpy()[:2], *size.numpy()[:2]] for begin, size, _ in drawn]
outputs["windows"] = np.array(windows, np.int16)

# Resizes, recording only the target sizes.
sizes = []
with mock.patch.object(
    tf.image, "resize", lambda image, size, **_: sizes.append(size) or tf.cast(image, tf.float32)
):
    for smaller, height, width in about["small"]:
        (op,) = calls(f"resize_small({smaller})")
        op({"image": tf.zeros([height, width, 1], tf.uint8)})
outputs["small"] = np.array([[int(side) for side in size] for size in sizes], np.int16)

# RandAugment's distortions one by one, with positive sign, and Cutout at the centre.
hparams = autoaugment.HParams(cutout_const=40, translate_const=100)
rows, columns = about.get("corner", pixels.shape[:2])
pixels = pixels[:rows, :columns]
centre = [tf.constant(size // 2) for size in (rows, columns)]
for name, level in about["distortions"]:
    with (
        mock.patch.object(autoaugment, "_randomly_negate_tensor", lambda x: x),
        mock.patch.object(autoaugment.tf, "random_uniform", side_effect=centre),
    ):
        function, _, arguments = autoaugment._parse_policy_info(
            name, 1.0, float(level), [128] * 3, hparams
        )
        if name == "Solarize":  # an 8-bit threshold, which NumPy 1 let wrap
            arguments = (arguments[0] % 256,)
        outputs[f"{name} {level}"] = function(pixels, *arguments).numpy()
np.savez(sys.argv[2], **outputs)
