"""The report about a prepared data set."""
