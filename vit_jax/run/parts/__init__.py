"""Config sections become objects, a file for each kind."""
