"""Definitions of tables and views, and a session's view of them."""
