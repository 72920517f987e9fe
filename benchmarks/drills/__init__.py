"""The drills of benchmarks/failure_drill.py, one per module."""
