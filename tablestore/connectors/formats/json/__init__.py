"""The ``json`` format."""
