"""Device meshes, the sharding rules, and figures of accelerators."""
