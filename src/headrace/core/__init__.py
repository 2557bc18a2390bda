"""Values and functions that every other package uses: offset ranges, validation, time, leases."""
