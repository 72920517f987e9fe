"""Programs that compute attention, and the choice among them."""
