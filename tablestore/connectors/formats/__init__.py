"""The connectors' row formats, which encode and decode the key or the value of a Kafka record."""
