"""Charts, pages of HTML and contact sheets of images."""
