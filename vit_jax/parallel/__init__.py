"""Floor 1: device meshes, the sharding rules, and figures of accelerators."""
