"""What an answer may be: JSON, JSON of a schema, a tool call."""
