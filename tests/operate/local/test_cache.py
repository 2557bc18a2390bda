import threading
from pathlib import Path

import pytest

from headrace.errors import SetupError
from headrace.operate.local.java import cache_folder, exclusive


def test_the_cache_is_in_the_users_cache_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HEADRACE_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder("jars") == tmp_path / "home" / ".cache" / "headrace" / "jars"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder("jars") == tmp_path / "xdg" / "headrace" / "jars"
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "chosen"))
    assert cache_folder("jars") == tmp_path / "chosen" / "jars"
    assert (tmp_path / "chosen" / "jars").is_dir()


def test_a_cache_that_cannot_be_made_is_an_error_that_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file"))
    with pytest.raises(SetupError, match=r"file/jars cannot be created .* set HEADRACE_CACHE to"):
        cache_folder("jars")


def test_one_holder_at_a_time_has_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    order = []

    def second() -> None:
        asked.set()
        with exclusive(lock):
            order.append("second")

    asked = threading.Event()
    thread = threading.Thread(target=second)
    with exclusive(lock):
        thread.start()
        asked.wait()
        thread.join(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
