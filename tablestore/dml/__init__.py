"""The DML statements: delete, update, overwrite, truncate and merge. ``run.py`` is the entry point."""
