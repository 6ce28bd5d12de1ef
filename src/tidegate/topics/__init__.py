"""Topics and subscriptions as pure machines: values, routing, catalog, acknowledgements, producers."""
