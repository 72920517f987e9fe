"""EfficientNets: their fields and names, and the network."""
