"""Tables in this process."""
