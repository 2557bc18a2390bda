"""The names that `headrace.simulation` makes public."""

import headrace.simulation


def test_every_exported_name_exists_once_and_they_are_sorted() -> None:
    names = headrace.simulation.__all__
    assert names == sorted(set(names))
    assert all(hasattr(headrace.simulation, name) for name in names)
