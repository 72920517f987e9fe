"""Data: sources hand out encoded examples, ops make pixels of them, the pipeline makes batches.

The only folder that imports TensorFlow, and always through `host_tf`.
"""
