"""Figures by matplotlib: arrays in, a `matplotlib.figure.Figure` out; style/look.py encodes it."""
