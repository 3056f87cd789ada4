"""The façade: ``TableStore`` and its parts."""
