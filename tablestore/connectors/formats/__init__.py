"""The connectors' formats: how a record's key or value becomes bytes, and comes back."""
