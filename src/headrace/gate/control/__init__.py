"""The control laws: pure functions of their arguments, without Spark, I/O, clocks or threads."""
