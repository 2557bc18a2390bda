"""The names that `headrace.gate.control` makes public."""

import headrace.gate.control


def test_every_exported_name_exists_once() -> None:
    names = headrace.gate.control.__all__
    assert len(names) == len(set(names))
    assert all(hasattr(headrace.gate.control, name) for name in names)


def test_the_exports_are_sorted() -> None:
    assert headrace.gate.control.__all__ == sorted(headrace.gate.control.__all__)
