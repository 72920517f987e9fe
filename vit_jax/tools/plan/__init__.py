"""`vit-jax plan`: memory, time and cost of a run before it is started."""
