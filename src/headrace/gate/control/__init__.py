"""The decisions of a gate (rates, plans, failures): code without Spark, I/O, clocks or threads."""
