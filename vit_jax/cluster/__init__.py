"""The processes of one run: how they connect, watch each other and stop together."""
