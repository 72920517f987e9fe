"""The measurements that need an accelerator, made by one command: see __main__.py."""

COPY = "copy, bytes read and written"  # the last case of matrix_rate.py
