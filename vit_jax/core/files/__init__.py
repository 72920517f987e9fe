"""Files written whole, strict JSON, the user's cache folder."""
