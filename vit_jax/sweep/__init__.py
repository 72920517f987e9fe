"""A grid of trainings: its points, what they are doing, how they ended. The command is sweep.py."""
