"""Readers of raw collections: folders, tars, JSON lines, Parquet files."""
