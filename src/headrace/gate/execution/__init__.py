"""A query's gate: its reader, its handler, and the listener that feeds its rate law."""
