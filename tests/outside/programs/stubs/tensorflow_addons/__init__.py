"""The parts of TensorFlow Addons, no longer released, that big_vision's RandAugment uses."""
