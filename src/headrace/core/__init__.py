"""What every other package uses: ranges of offsets, option text, validation, time and leases."""
