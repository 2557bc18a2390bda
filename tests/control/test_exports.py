"""The names that `headgate.control` makes public."""

import headgate.control


def test_every_exported_name_exists_once() -> None:
    names = headgate.control.__all__
    assert len(names) == len(set(names))
    assert all(hasattr(headgate.control, name) for name in names)


def test_the_exports_are_sorted() -> None:
    assert headgate.control.__all__ == sorted(headgate.control.__all__)
