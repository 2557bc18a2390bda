"""The exit statuses of all commands."""

from enum import IntEnum


class ExitStatus(IntEnum):
    """Exit status of a command. ``docs/commands.md`` has the same as a table."""

    DONE = 0
    """It did what was asked for; nothing is open."""
    ERROR = 1
    """It could not do it, or something is wrong with the machine; a sentence says what."""
    USAGE = 2
    """The command cannot be understood."""
    OPEN = 3
    """It did what was asked for, and something is not done yet."""
    BROKEN = 4
    """Something is missing, there twice, or damaged."""
    HUNG_UP = 129
    """Its terminal has gone (SIGHUP)."""
    INTERRUPTED = 130
    """Ctrl-C."""
    TERMINATED = 143
    """SIGTERM, of a command that does not end well by it."""
