"""The measurements that need an accelerator, made by one command: see __main__.py."""
