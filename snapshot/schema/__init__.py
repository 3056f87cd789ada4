"""The columns of a table: their definition, evolution and physical names, and their types elsewhere."""
