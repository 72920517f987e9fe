"""`python -m vit_jax.plan`: memory, time and cost of a run before it is started."""
