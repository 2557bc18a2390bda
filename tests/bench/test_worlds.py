"""The pictures and figures of the documents are those of the simulator."""

import pytest
from bench.simulation import Policy
from bench.worlds import FOLDER, WORLDS, five_stages, picture

DOCS = FOLDER.parents[1]


@pytest.mark.parametrize("world", WORLDS)
def test_a_picture_is_what_the_simulator_draws(world: str) -> None:
    assert f"(images/worlds/{world}.svg)" in (DOCS / "internals.md").read_text()
    drawn = (FOLDER / f"{world}.svg").read_text()
    assert drawn == picture(world), "python -m bench.worlds draws them again"


@pytest.mark.parametrize("policy", Policy)
def test_the_figures_of_five_stages_are_those_of_the_page(policy: Policy) -> None:
    row = f"| `{policy}` | {' | '.join(five_stages(policy))} |"
    assert row in (DOCS / "benchmarks.md").read_text()
