"""Turns raw collections of images into data sets (`vit-jax prepare`).

A collection (imagenet.py ...) names its parts: tars, folders, lists. Then

1. each part is read once from its beginning to its end, every image is checked and hashed, and a
   catalogue keeps a row for each (tasks.py, faults.py, collection.py);
2. the catalogues decide the split, order and shard of each image (split_assignment.py);
3. each shard is written from the locations of its images (tasks.py).

Catalogues and shards are files that are written completely or not at all, by independent tasks: in
any number of processes or on Apache Beam, with the same bytes in the end (pipeline.py).
"""
