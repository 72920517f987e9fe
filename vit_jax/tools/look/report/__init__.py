"""A report of runs as one HTML page, from what they left in their work directories.

Imports neither JAX nor NumPy, so that the page is made within a second.
"""
