"""ResNets: standardised convolutions, and the stages of BiT and of hybrids."""
