"""Readers of raw collections: folders, tars, records, Parquet files."""
