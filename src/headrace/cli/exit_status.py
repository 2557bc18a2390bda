"""What commands tell a script beside 0, 1 (an error) and 2 (it cannot be understood)."""

from typing import Final

OPEN: Final = 3
"""There is something that is not done yet."""

BROKEN: Final = 4
"""Something is missing, there twice, or damaged."""
