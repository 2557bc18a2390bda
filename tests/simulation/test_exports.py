"""The names that `headgate.simulation` makes public."""

import headgate.simulation


def test_every_exported_name_exists_once_and_they_are_sorted() -> None:
    names = headgate.simulation.__all__
    assert names == sorted(set(names))
    assert all(hasattr(headgate.simulation, name) for name in names)
