"""Long runs under faults that come again and again: what happens in minutes must hold for as long as a table lives."""
