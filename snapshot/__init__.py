"""The table files on Delta Lake, and the words that all layers share."""
