"""What a run will take, found out before it is started (`python -m vit_jax.plan`)."""
