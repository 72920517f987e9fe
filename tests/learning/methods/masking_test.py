"""Targets against values computed by hand."""

import numpy as np

from vit_jax.learning.methods import masking


def test_mean_colours_are_3_bits_of_each_channels_mean():
    patches = np.zeros((1, 4, 2, 2, 3), np.uint8)
    patches[0, 0] = 255  # white: the highest level of each channel
    patches[0, 1, ..., 0] = [[255, 255], [0, 0]]  # the mean is 1/2: level 4 of red
    patches[0, 2] = (31, 32, 255)  # 31 * 8 / 255 < 1 <= 32 * 8 / 255
    patches[0, 3, 0, 0] = (0, 255, 127)  # a quarter of it: 0, 63.75 and 31.75
    by_hand = [7 * 64 + 7 * 8 + 7, 4 * 64, 0 * 64 + 1 * 8 + 7, 0 * 64 + 2 * 8 + 0]
    assert masking.mean_colours(patches).tolist() == [by_hand]


def test_patches_and_their_cells_are_row_by_row():
    rows, columns = np.indices((8, 12))
    images = np.stack([rows, columns, rows * 12 + columns], axis=-1)[None].astype(np.float32)
    patches = masking.cut(images, 4)
    assert patches.shape == (1, 6, 4, 4, 3)
    np.testing.assert_array_equal(patches[0, 4], images[0, 4:8, 4:8])
    larger = np.pad(images, ((0, 0), (0, 3), (0, 1), (0, 0)))  # model.crop_to_patches
    np.testing.assert_array_equal(masking.cut(larger, 4), patches)
    cells = masking.cut_again(patches, 2)
    assert cells.shape == (1, 6, 4, 2, 2, 3)
    np.testing.assert_array_equal(cells[0, 4, 2], images[0, 6:8, 4:6])


def test_mean_colours_as_in_float64():
    patches = np.random.default_rng(0).integers(0, 256, (50, 16, 16, 3)).astype(np.uint8)
    level = np.minimum(np.floor(patches.mean(axis=(1, 2)) / 255 * 8), 7).astype(int)
    assert masking.mean_colours(patches).tolist() == (level @ [64, 8, 1]).tolist()
