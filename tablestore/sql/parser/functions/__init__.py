"""Functions of Flink that Spark does not have, or that return something else there."""
