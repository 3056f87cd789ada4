"""The columns of a table: definition, schema evolution, physical names, and the mapping to other type systems."""
