"""The settings file: what it may have, what it says when it is wrong, and what is printed."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from headrace.errors import OptionError
from headrace.journal.receivers import HttpSettings, TcpSettings
from headrace.journal.receivers.settings_file import KEYS, SettingsFile, default_file

ROOT = Path(__file__).parents[3]
SECTIONS = ("http", "tcp", "mqtt")


def read(folder: Path, text: str, section: str = "tcp") -> SettingsFile:
    file = folder / "receiver.toml"
    file.write_text(text)
    return SettingsFile.read(file, section)


def test_a_receiver_takes_the_keys_of_all_and_those_of_its_section(tmp_path: Path) -> None:
    text = """
        block_bytes = 1000
        initial_rate = 5
        [http]
        wait_s = 2.5
        [tcp]
        line_s = 7
        id_field = "id"
    """
    shared = {"block_bytes": 1_000, "initial_rate": 5}
    assert read(tmp_path, text).values == {**shared, "line_s": 7, "id_field": "id"}
    assert read(tmp_path, text, "http").values == {**shared, "wait_s": 2.5}
    assert read(tmp_path, text, "mqtt").values == shared
    assert SettingsFile.read(None, "tcp").values == {}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("blok_bytes = 1", "blok_bytes is not known; did you mean block_bytes?"),
        ("[tcp]\nxyz = 1", "xyz in [tcp] is not known; the keys there are check_json, id_field,"),
        ("[tcp]\nline = 30", "line in [tcp] lacks its unit; it is line_s."),
        ("block_interval = 30", "block_interval lacks its unit; it is block_interval_ms."),
        ("line_s = 30", "line_s is in the wrong place; put it into [tcp]."),
        ("check_json = true", "check_json is in the wrong place; put it into [http] or [tcp]."),
        (
            "[http]\nblock_bytes = 1",
            "block_bytes in [http] is in the wrong place; put it before the",
        ),
        ("max_rate = 3", "max_rate cannot be set in the file; use the option --max-rate."),
        ("[tcp]\nport = 3", "port in [tcp] cannot be set in the file; use the option --port."),
        (
            "[htp]\na = 1",
            "the section [htp] is not known; the sections are [http], [tcp] and [mqtt].",
        ),
        ("http = 3", "http is a key; it must be the section [http]."),
        (
            '[tcp]\nline_s = "30 s"',
            "line_s in [tcp] is '30 s'; it must be a number: Time limit of a line from its first",
        ),
        (
            "block_bytes = 1.5",
            "block_bytes is 1.5; it must be a whole number: Size at which a block",
        ),
        ("block_bytes = true", "block_bytes is True; it must be a whole number: "),
        ("[tcp]\ncheck_json = 1", "check_json in [tcp] is 1; it must be true or false: Whether"),
        (
            "[tcp]\nid_field = 5",
            "id_field in [tcp] is 5; it must be a text in quotes: Name of the",
        ),
        ("[tcp]\nline_s = 0", "line_s is 0 s; it must be a finite number above 0."),
        ("block_bytes = 0", "block_bytes is 0; it must be a whole number of 1 or more."),
        ("status_port = 70000", "status_port is 70000; it must be 1 to 65535"),
        ("max_unread_s = -1", "max_unread_s is -1 s; it must be a finite number above 0."),
        ("[http]\nmax_records = 0", "max_records is 0; it must be a whole number of 1 or more."),
        ("[mqtt]\nkeepalive_s = 0", "keepalive_s is 0; it must be a whole number from 1 to 65535."),
    ],
)
def test_what_is_wrong_is_one_sentence_whichever_receiver_reads_it(
    tmp_path: Path, text: str, sentence: str
) -> None:
    for section in SECTIONS:
        with pytest.raises(OptionError) as raised:
            read(tmp_path, text, section)
        said = str(raised.value)
        assert said.startswith(f"In the settings file {tmp_path}/receiver.toml: {sentence}")


@pytest.mark.parametrize("text", ["a = ", "a = 1\na = 2"])
def test_what_is_not_toml_is_said_with_its_place(tmp_path: Path, text: str) -> None:
    with pytest.raises(OptionError, match=r"receiver.toml is not TOML: .* \(at "):
        read(tmp_path, text)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"no.toml cannot be read: No such file"):
        SettingsFile.read(tmp_path / "no.toml", "tcp")


def test_the_printed_file_has_every_key_with_its_default_and_is_read(tmp_path: Path) -> None:
    text = default_file()
    assert max(map(len, text.splitlines())) <= 100
    told = tomllib.loads(re.sub(r"# (\w+) =$", r'\1 = "-"', text, flags=re.MULTILINE))
    for part, keys in KEYS.items():
        values = told[part] if part else told
        assert {name for name in values if name not in SECTIONS} == set(keys)
        for name, key in keys.items():
            assert values[name] == ("-" if key.default is None else key.default)
            assert key.sentence.endswith(".")
    for section in SECTIONS:
        read(tmp_path, text, section)


def test_the_file_in_the_documentation_is_one(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "receivers.md").read_text()
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    section = page.partition("## The settings file")[2].partition("\n## ")[0]
    assert text in section
    for name in SECTIONS:
        read(tmp_path, text, name)


def test_every_size_and_time_says_its_unit() -> None:
    for keys in KEYS.values():
        for key in keys.values():
            unit = key.name.rpartition("_")[2]
            if unit in ("s", "ms", "bytes"):
                assert re.search(rf"\({unit}\b", key.sentence), key
            if key.kind in (int, float):
                assert re.search("above|or more|at least|to|for any", key.sentence), key


def test_options_and_keys_are_all_settings_and_none_is_both() -> None:
    for kind, section in ((HttpSettings, "http"), (TcpSettings, "tcp")):
        assert set(KEYS[section]) < {each.name for each in fields(kind)}
    assert not set(KEYS[""]) & {name for part in SECTIONS for name in KEYS[part]}
