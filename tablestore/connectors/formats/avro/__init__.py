"""The row format ``avro``."""
