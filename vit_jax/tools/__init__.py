"""Commands that use the core, which never imports them."""
