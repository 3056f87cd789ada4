"""The table files on Delta Lake, and the modules that all layers share: errors, records, schema, row kinds, storage."""
