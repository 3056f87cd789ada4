"""Flink's ``datagen`` connector: tables whose rows are generated, random or in sequence."""
