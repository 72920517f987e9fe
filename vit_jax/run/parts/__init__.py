"""Objects from config sections, one file for each kind."""
