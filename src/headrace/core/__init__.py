"""Code shared by all packages: offset ranges, option validation, clocks and leases, processes."""
