"""Measures of features and weights: arrays in, numbers out. No model, no images."""
