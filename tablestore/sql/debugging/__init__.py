"""Flink's connectors without storage: ``datagen``, whose rows are generated, ``print`` and ``blackhole``."""
