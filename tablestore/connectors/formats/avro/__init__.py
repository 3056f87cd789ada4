"""The ``avro`` format."""
