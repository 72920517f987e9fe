"""Drawing: scales of axes, contact sheets of images."""
