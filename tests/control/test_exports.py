"""The names that `headrace.control` makes public."""

import headrace.control


def test_every_exported_name_exists_once() -> None:
    names = headrace.control.__all__
    assert len(names) == len(set(names))
    assert all(hasattr(headrace.control, name) for name in names)


def test_the_exports_are_sorted() -> None:
    assert headrace.control.__all__ == sorted(headrace.control.__all__)
