"""Spark: the data source, the session, and the driver of the pipeline. Nothing else imports pyspark."""
