"""What features are worth and what weights show: arrays in, numbers out. No model, no images."""
