"""What is seen of a demo where there is no terminal."""

from io import StringIO

from rich.console import Console
from tests.cli.histories import NOW_MS, text_of, with_lags

from headrace.cli.demo.show import Show, picture
from headrace.cli.snapshot import take_snapshot

SNAPSHOT = take_snapshot(with_lags(9_000, 8_500, 8_000), NOW_MS)


def test_a_pipe_is_given_one_line_a_second() -> None:
    output = StringIO()
    with Show(Console(file=output, width=80)) as show:
        show.update(0.0, "backlog", None)
        for tenths in range(1, 25):
            show.update(tenths / 10, "backlog", SNAPSHOT)
    lines = output.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["0.1", "1.1", "2.1"]
    assert "backlog · draining · lag 8,000 · rate 1,000/s · batch 0.90 s of 1.00 s" in lines[0]


def test_the_picture_says_what_is_shown() -> None:
    text = text_of(picture(12.0, "slow handler x4 · 10 orders", SNAPSHOT))
    assert "12 s  slow handler x4 · 10 orders" in text
    assert "Draining: 7,000 records left waiting" in text
    assert len(text.splitlines()) <= 29


def test_before_the_first_snapshot_it_says_that_the_query_is_starting() -> None:
    assert "The query is starting." in text_of(picture(1.0, "backlog", None))


def test_a_terminal_is_given_back_as_it_was() -> None:
    output = StringIO()
    with Show(Console(file=output, width=100, height=30, force_terminal=True)) as show:
        show.update(1.0, "backlog", SNAPSHOT)
    text = output.getvalue()
    assert text.index("\x1b[?1049h") < text.index("Draining") < text.index("\x1b[?1049l")
