"""The layers of EfficientNets: batch norm, and inverted bottlenecks with squeeze-and-excitation."""
