"""What trained weights are worth on other data, by a protocol that keeps the test for the end."""
