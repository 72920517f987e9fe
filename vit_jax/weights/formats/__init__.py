"""Formats of weights: what each project calls its arrays, and how it lays them out."""
