"""The ``csv`` format."""
