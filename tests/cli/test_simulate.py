"""The command that simulates, and the page that tells of it."""

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image
from tests.cli.commands import run

from headrace.cli.simulate import simulate
from headrace.errors import SetupError

PAGE = Path(__file__).parents[2] / "docs" / "simulation.md"


def block(language: str) -> str:
    """The first block of that language on the page."""
    fenced = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return next(found[2] for found in fenced.finditer(PAGE.read_text()) if found[1] == language)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "five.toml").write_text(block("toml"))
    return tmp_path


def test_the_commands_of_the_page_run_and_give_its_figures(folder: Path) -> None:
    for line in block("").splitlines():
        ended = run(*line.split()[1:], folder=folder)
        assert (ended.returncode, ended.stderr) == (0, "")
    side_by_side = ended.stdout[ended.stdout.index("Side by side") :]
    while_slow = [line.split("│") for line in side_by_side.splitlines() if "60 - 360" in line]
    table = re.findall(
        r"^\| `([\w-]+)` \| ([\d ]+) \| ([\d.]+) \| ([\d ]+) MB \| (\d+) \|$",
        PAGE.read_text(),
        re.MULTILINE,
    )
    printed = [
        (policy.strip(), sinks.strip().replace(",", " "), swing.strip(), turns.strip())
        for _, _, policy, sinks, swing, _, _, turns, _ in while_slow
    ]
    assert printed == [(policy, sinks, swing, turns) for policy, sinks, swing, _, turns in table]
    assert len(printed) == 3


def test_the_python_of_the_page_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    exec(compile(block("python"), "page", "exec"), {})  # noqa: S102  (our own page)
    processed, largest = capsys.readouterr().out.split()
    assert float(processed) > 0.95 * 27_000
    assert int(largest) < 100_000_000


def test_the_picture_has_a_panel_for_rates_queues_and_delays_of_each_policy(folder: Path) -> None:
    arguments = ["--policy", "none", "--policy", "sources", "--svg", "five.svg"]
    ended = run("simulate", "five.toml", *arguments, folder=folder)
    assert ended.returncode == 0
    picture = ElementTree.fromstring((folder / "five.svg").read_text())  # noqa: S314  (our own)
    name = "{http://www.w3.org/2000/svg}"
    assert len(picture.findall(f"{name}polyline")) == 2 * 3 * (5 + 1), "the stages, and the axes"
    texts = [text.text for text in picture.findall(f"{name}text")]
    for title in ("admitted, records/s", "waiting, MB", "delay, s"):
        assert texts.count(title) == 2
    assert {"simulated: none", "simulated: sources"} <= set(texts)
    assert "http" not in (folder / "five.svg").read_text().replace("http://www.w3.org/2000/svg", "")


def test_the_png_shows_what_the_svg_shows(folder: Path) -> None:
    ended = run("simulate", "five.toml", "--svg", "five.svg", "--png", "five.png", folder=folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    drawn = ElementTree.fromstring((folder / "five.svg").read_text())  # noqa: S314  (our own)
    with Image.open(folder / "five.png") as picture:
        assert picture.format == "PNG"
        assert picture.size == (2 * int(drawn.attrib["width"]), 2 * int(drawn.attrib["height"]))
        points = picture.convert("RGB").tobytes()
        title = picture.convert("L").crop((160, 10, 900, 50)).getextrema()
    found = set(zip(points[::3], points[1::3], points[2::3], strict=True))
    seen = {f"#{bytes(colour).hex()}" for colour in found}
    curves = {line.get("stroke") for line in drawn.iter() if "polyline" in line.tag}
    assert len(curves) == 5 + 1
    assert curves | {"#f2f2f2", "#ffffff"} <= seen
    assert title == (0, 255), "black on white"


def test_without_its_package_a_png_is_refused_before_anything_is_simulated(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "headrace.cli.simulate_png", raising=False)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(SetupError, match=r"pip install 'headrace\[plot\]', or draw an SVG\.$"):
        simulate(folder / "no-such-world.toml", png=folder / "five.png")


def test_json_has_all_and_equal_seeds_are_equal(folder: Path) -> None:
    world = block("toml").replace(
        "duration_s = 480", "duration_s = 90\n[estimator]\nintegral = 0.1"
    )
    (folder / "noisy.toml").write_text(world.replace("fixed_ms = 50 ", "noise = 0.1 "))
    said = [
        run("simulate", "noisy.toml", "--json", "--seed", seed, folder=folder).stdout
        for seed in ("1", "1", "2")
    ]
    assert said[0] == said[1] != said[2]
    result = json.loads(said[0])
    assert set(result) == {
        "policy", "seed", "phases", "moves", "signals", "largest_bytes", "times_s", "series"
    }  # fmt: skip
    assert result["policy"] == "hop-by-hop"
    assert len(result["series"]["score"]["waiting_bytes"]) == len(result["times_s"]) == 91
    assert result["moves"][0]["stage"] == "enrich"


def test_of_many_stages_those_that_matter_are_shown(folder: Path) -> None:
    stages = "".join(
        f'[[stage]]\nname = "s{number}"\ncapacity_per_s = 1000\nload = {number}\n'
        for number in range(30)
    )
    (folder / "many.toml").write_text(f"duration_s = 10\n{stages}")
    ended = run("simulate", "many.toml", folder=folder)
    assert "and 10 others" in ended.stdout
    assert " s29 " in ended.stdout
    assert " s0 " not in ended.stdout


def test_a_mistake_is_told_in_one_sentence(folder: Path) -> None:
    (folder / "wrong.toml").write_text(block("toml").replace("factor = 0.25", "factor = 0"))
    ended = run("simulate", "wrong.toml", folder=folder)
    assert ended.returncode == 1
    assert ended.stderr == (
        "headrace: In wrong.toml: [[disturbance]] number 1: factor is 0 (a part); it must be a"
        " number above 0.\n"
    )


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_a_picture_that_cannot_be_written_is_told(folder: Path, kind: str) -> None:
    ended = run("simulate", "five.toml", f"--{kind}", f"nowhere/five.{kind}", folder=folder)
    assert ended.returncode == 1
    assert f"The picture nowhere/five.{kind} cannot be written: No such file" in ended.stderr
