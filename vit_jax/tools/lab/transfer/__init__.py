"""Transfer of trained weights to other data, by a protocol that keeps the test for the end."""
