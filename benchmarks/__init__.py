"""Side-by-side benchmarks of the table store. ``python -m benchmarks --small`` runs them all."""
