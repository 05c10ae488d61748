"""One file per version of the schema, in the order of their numbers."""
