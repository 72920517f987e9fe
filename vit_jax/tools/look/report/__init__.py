"""A report of runs as one HTML page, from what they left in their work directories.

Imports neither JAX nor TensorFlow, so that the page is made within seconds.
"""
