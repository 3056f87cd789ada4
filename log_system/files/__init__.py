"""The log of a table without a broker: the changes in the table's own files."""
