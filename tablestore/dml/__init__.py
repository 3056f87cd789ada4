"""The verbs that change rows by what they hold: delete, update, overwrite, truncate, merge. ``run.py`` is the door."""
