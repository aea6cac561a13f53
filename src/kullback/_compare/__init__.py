"""Files, tables and logits dumps → a record of how far apart they are."""
