"""The process of a command: flags, signals, waiting, devices."""
