"""The pipeline, without Spark: the owner's side of it, and what its worker does with one span of the log."""
