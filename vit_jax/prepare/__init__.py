"""Raw collections of images become data sets (`python -m vit_jax.prepare`).

A collection (imagenet21k.py ...) names its parts: tars, folders, lists. Then

1. each part is read once from its beginning to its end, every image checked and hashed (parts.py,
   checking.py), and what was found is kept as a catalogue (catalogue.py);
2. from all catalogues follows which image is in which split and shard, and where in it
   (arrangement.py);
3. each shard is written from the places where its images lie (shards.py).

Parts and shards are files that are there in full or not at all, made by tasks that do not know of
each other: workers.py runs them in any number of processes, or on Beam, with the same bytes at the
end, and a preparation that was killed goes on with those that are missing (preparation.py).
"""
