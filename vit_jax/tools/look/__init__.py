"""Pictures and pages of data, models and runs."""
