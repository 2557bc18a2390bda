"""``headrace demo``: a gated query on a real broker, watched live, and counted at the end."""
