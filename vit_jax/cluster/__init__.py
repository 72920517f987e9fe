"""Processes of one run: how they meet, watch each other and stop together."""
