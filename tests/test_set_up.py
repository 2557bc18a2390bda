"""The set-up's installer: what counts as there, what it removes, and when it does not begin."""

from pathlib import Path

import pytest
from tests.install import BROKEN, present, remove_halves, shortage


def package(packages: Path, name: str, version: str, *, whole: bool = True) -> Path:
    """A package of a megabyte."""
    folder = packages / f"{name}-{version}.dist-info"
    folder.mkdir()
    (packages / f"{name}.py").write_bytes(bytes(1_000_000))
    (folder / "RECORD").write_text(f"{name}.py,sha256=x,1000000\ngone.py,,\n")
    if whole:
        (folder / "INSTALLER").write_text("pip\n")
    return folder


def test_packages_count_in_their_locked_versions_only(tmp_path: Path) -> None:
    package(tmp_path, "flask_cors", "6.0.5")
    package(tmp_path, "idna", "3.19")
    lock = tmp_path / "requirements.lock"
    lock.write_text("flask-cors==6.0.5 ; python_version < '4' \\\n    --hash=x\nidna==3.20 \\\n")
    assert present(lock, tmp_path) == 1.0


def test_what_setuptools_has_installed_counts_too(tmp_path: Path) -> None:
    (tmp_path / "pyspark-4.3.0.egg-info").mkdir()
    (tmp_path / "pyspark.py").write_bytes(bytes(2_000_000))
    files = tmp_path / "pyspark-4.3.0.egg-info/installed-files.txt"
    files.write_text("../pyspark.py\n")
    lock = tmp_path / "requirements.lock"
    lock.write_text("pyspark==4.3.0 \\\n    --hash=x\n")
    assert present(lock, tmp_path) == 2.0


def test_half_a_package_is_removed_and_a_whole_one_stays(tmp_path: Path) -> None:
    whole, half = package(tmp_path, "a", "1"), package(tmp_path, "b", "1", whole=False)
    remove_halves(tmp_path)
    assert (whole.exists(), half.exists()) == (True, False)


def test_a_disk_without_room_is_named_with_what_it_needs_and_has(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert shortage("Installing", {tmp_path: 1, tmp_path / "other": 1}) is None
    refusal = shortage("Installing", {tmp_path: 1, tmp_path / "other": 1e12})
    assert refusal is not None
    assert "takes about 1,000,000,000,001 MB on the disk of" in refusal
    assert refusal.endswith("; make room there, and run make again.")


@pytest.mark.parametrize(
    "words",
    [
        "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
        "zipfile.BadZipFile: Bad CRC-32 for file 'idna/core.py'",
        "ERROR: Wheel 'idna' located at /tmp/idna.whl is invalid.",
    ],
)
def test_words_of_pip_about_a_broken_file_are_known(words: str) -> None:
    assert BROKEN.search(words)
    assert not BROKEN.search("ERROR: No matching distribution found for idna==3.20")
