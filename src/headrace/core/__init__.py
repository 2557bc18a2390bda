"""Code that all packages share: offset ranges, parsing of options, clocks, leases and processes."""
