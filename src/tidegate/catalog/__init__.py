"""The catalog, without IO: which topics, subscriptions and tables exist, and the SQL statements about them."""
