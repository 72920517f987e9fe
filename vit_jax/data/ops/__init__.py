"""Ops: from encoded images to pixels, one after another as `input.preprocess` lists them."""
