"""Floor 1: learning-rate schedules, weight decay and optimizers, all on top of optax."""
