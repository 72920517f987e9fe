"""The command that scores trained models on data."""
