"""``headrace demo``: a gated query, watched live, whose orders are counted at the end."""
