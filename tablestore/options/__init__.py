"""Options of tables and reads, parsed once."""
