"""Many runs: grids, protocols, scaling laws, learning rates."""
