"""Senders that are let in: files of tokens and of certificates, and their errors."""

from pathlib import Path

import pytest
from tests.gate.kafka.client_certificates import ENCRYPTED_KEY
from tests.journal.receivers.serving import TOKEN, comparisons
from tests.services.certificates import Authority, CertificateFiles

from headrace.errors import OptionError
from headrace.journal.receivers import HttpSettings, TcpSettings, TlsFiles
from headrace.journal.receivers.access import Access, Tokens


def tokens_of(folder: Path, text: str) -> Tokens:
    (folder / "tokens").write_text(text)
    return Tokens.of_file(str(folder / "tokens"))


def test_a_token_has_the_name_in_its_line(tmp_path: Path) -> None:
    tokens = tokens_of(tmp_path, "# renewed in May\n\ntill-1  a1\n till-2 a#2 \r\nalone\n")
    assert tokens.names == ("till-1", "till-2", "default")
    assert [tokens.name_of(each) for each in (b"a1", b"a#2", b"alone", b"a", b"", b"till-1")] == [
        "till-1",
        "till-2",
        "default",
        None,
        None,
        None,
    ]


def test_every_token_is_compared_in_constant_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tokens_of(tmp_path, "a 1\nb 2\n")
    compared = comparisons(monkeypatch)
    assert tokens.name_of(b"1") == "a"
    assert compared == [b"1", b"1"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "tokens contains no token, so anyone could send"),
        ("\n# nothing\n  \n", "contains no token"),
        ("a b c\n", "Line 1 of the token file .* is not valid"),
        ("a 1\nb gr\u00fcn\n", "Line 2 of the token file .* is not valid"),
        ("a/b 1\n", "The name in line 1 of the token file .* is 'a/b'"),
        ("a 1\na 2\n", "repeats the name 'a'; give each token"),
    ],
)
def test_a_wrong_file_of_tokens_is_refused_in_one_sentence(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(OptionError, match=words) as refused:
        tokens_of(tmp_path, text)
    assert "gr\u00fcn" not in str(refused.value)


def test_a_file_of_tokens_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_bytes(b"\xff\xfe")
    with pytest.raises(OptionError, match="cannot be read: it is not UTF-8"):
        Tokens.of_file(str(tmp_path / "tokens"))
    with pytest.raises(OptionError, match="cannot be read: No such file"):
        Tokens.of_file(str(tmp_path / "none"))


def test_a_token_and_a_file_of_tokens_are_one_too_many() -> None:
    with pytest.raises(OptionError, match="Both a token and the token file f are set"):
        HttpSettings(token=TOKEN, token_file="f")  # noqa: S106


def test_a_key_without_a_certificate_is_refused() -> None:
    for wrong in ({"key_file": "k"}, {"client_ca_file": "c"}):
        with pytest.raises(OptionError, match="without the receiver's certificate file"):
            TlsFiles(**wrong)


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return Authority(tmp_path).issue("server")


def test_wrong_files_of_certificates_are_refused_in_one_sentence(
    tmp_path: Path, files: CertificateFiles
) -> None:
    other = Authority(tmp_path, "other").issue("stranger")
    (tmp_path / "text").write_text("no PEM")
    (tmp_path / "encrypted").write_text(ENCRYPTED_KEY)
    text, encrypted, none = (str(tmp_path / name) for name in ("text", "encrypted", "none"))
    certificate, key = files
    for wrong, words in [
        (
            TlsFiles(certificate, other.key),
            "the key does not fit the certificate; name",
        ),
        (TlsFiles(text, key), "text, .* cannot be used: a file contains no certificate or no key"),
        (TlsFiles(certificate, text), "a file contains no certificate or no key"),
        (TlsFiles(certificate), "a file contains no certificate or no key"),
        (TlsFiles(certificate, key, text), "a file contains no certificate or no key"),
        (TlsFiles(certificate, encrypted), "the key has a passphrase, but must not"),
        (TlsFiles(none, key), "cannot be used: No such file"),
        (TlsFiles(certificate, key, str(tmp_path)), "cannot be used: Is a directory"),
    ]:
        with pytest.raises(OptionError, match=words):
            Access(TcpSettings(tls=wrong))


def test_a_certificate_that_cannot_be_used_leaves_the_one_of_before_in_use(
    files: CertificateFiles, caplog: pytest.LogCaptureFixture
) -> None:
    access = Access(HttpSettings(tls=TlsFiles(*files)))
    before = access.context
    Path(files.key).write_text("half")
    assert [access.context, access.context] == [before, before]
    assert caplog.text.count("The previous certificate stays in use.") == 1
