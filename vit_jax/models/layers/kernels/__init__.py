"""Kernels of attention: which computes it, and those besides the plain program."""
