"""The one door to the Delta protocol."""
