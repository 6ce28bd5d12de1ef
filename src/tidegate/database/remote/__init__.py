"""A database from another process: frames on the wire, the owner's server, the others' client."""
