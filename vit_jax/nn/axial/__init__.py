"""Attention along one axis of a grid at a time (arXiv 1912.12180), and blocks made of it."""
