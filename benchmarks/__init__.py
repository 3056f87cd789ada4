"""Side-by-side measurements of the table store. ``python -m benchmarks --small`` runs them all."""
