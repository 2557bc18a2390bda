"""Driver's side of a gate: stream reader, handler calls, failure policies, and query listener."""
