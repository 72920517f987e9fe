"""What big_vision's RandAugment takes of TensorFlow Addons, which is no longer released."""
