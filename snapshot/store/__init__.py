"""The snapshots of a table: its files, commits, changes and tags, and which files nothing needs any more."""
