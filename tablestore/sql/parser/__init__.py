"""Parses SQL text into statements, and renders statements as text."""
