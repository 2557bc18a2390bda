"""A journal's directory: what a crash may leave of a change that is made in steps."""

from pathlib import Path

import pytest
from tests.journal.shim import Recorder, crashes

from headrace.journal.storage.local import LocalStorage


@pytest.mark.parametrize("to", ["0/damaged", "aside/damaged"])
def test_a_file_that_is_set_aside_has_a_name_after_any_crash(tmp_path: Path, to: str) -> None:
    for folder in ("0", "aside"):
        (tmp_path / folder).mkdir()
    (tmp_path / "0" / "block").write_bytes(b"records")
    recorder = Recorder(tmp_path)
    LocalStorage(tmp_path, recorder).set_aside("0/block", to)
    left = [dict(files.held) for files, _ in crashes(recorder)]
    assert {Path("0/block"), Path(to)} <= {path for held in left for path in held}
    assert all(b"records" in held.values() for held in left)
