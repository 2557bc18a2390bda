"""Options of a channel's source, as they are given in Python."""


def option_text(value: object) -> str:
    """A value as Spark writes it in an option.

    >>> option_text(True), option_text(5)
    ('true', '5')
    """
    return str(value).lower() if isinstance(value, bool) else str(value)
