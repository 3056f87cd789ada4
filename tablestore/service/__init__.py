"""``tablestore serve``: publishes, maintains, verifies and shows tables without a writer."""
