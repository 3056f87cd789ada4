"""Definitions of tables and views, and what a session sees of them."""
