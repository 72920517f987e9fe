"""The training loop's parts: state, step, losses, evaluations, the log."""
