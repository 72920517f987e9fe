"""The models with axial attention: AxialViT and AxialResNet (arXiv 2010.11929, appendix D.6)."""
