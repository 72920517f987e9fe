"""Pictures of what a model has learnt, on one page."""
