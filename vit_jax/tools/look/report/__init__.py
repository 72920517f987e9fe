"""Report of runs as one HTML page, from their work directories.

Imports neither JAX nor TensorFlow, so that the page is made within seconds.
"""
