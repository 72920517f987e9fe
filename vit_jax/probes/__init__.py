"""What frozen features are worth: arrays in, numbers out. No model, no images."""
