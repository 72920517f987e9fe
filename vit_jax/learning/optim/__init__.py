"""Learning-rate schedules, weight decay and optimizers, all on top of optax."""
