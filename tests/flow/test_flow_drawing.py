"""Flows as they are drawn."""

from hypothesis import given
from hypothesis import strategies as st
from tests.flow.flows import a_flow

from headrace.cli.flows import draw
from headrace.flow import Flow
from headrace.flow.stage import Graph


def drawn(flow: Flow) -> str:
    return "\n" + draw(flow.graph) + "\n"


def test_a_chain_is_a_straight_line() -> None:
    flow = a_flow(("parse", "raw", ["parsed"]), ("enrich", "parsed", ["rich"]))
    assert (
        drawn(flow)
        == """
     │
     │ raw
     ▼
┌────────┐
│ parse  │
└────┬───┘
     │ parsed
     ▼
┌────────┐
│ enrich │
└────┬───┘
     │ rich
"""
    )


def test_what_fans_out_and_in_again() -> None:
    flow = a_flow(
        ("split", "raw", ["good", "bad"]),
        ("store", "good", ["out"]),
        ("mend", "bad", ["out"]),
        ("sink", "out", []),
    )
    assert (
        drawn(flow)
        == """
    │
    │ raw
    ▼
┌───────┐
│ split │
└──┬─┬──┘
   └┐│            good
    │└──────────┐ bad
    ▼           ▼
┌───────┐   ┌───────┐
│ store │   │ mend  │
└───┬───┘   └───┬───┘
    ├───────────┘ out
    ▼
┌───────┐
│ sink  │
└───────┘
"""
    )


def test_a_channel_that_skips_a_layer_passes_beside_it() -> None:
    flow = a_flow(("a", "x", ["m", "late"]), ("b", "m", ["late"]), ("c", "late", []))
    assert (
        drawn(flow)
        == """
   │
   │ x
   ▼
┌─────┐
│  a  │
└─┬─┬─┘
  └┐│       m
   │└─────┐ late
   ▼      ▼
┌─────┐   │
│  b  │   │
└──┬──┘   │
   ├──────┘ late
   ▼
┌─────┐
│  c  │
└─────┘
"""
    )


def test_nothing_is_drawn_of_a_flow_without_stages() -> None:
    assert draw(Graph({}, {})) == ""


@st.composite
def flows(draw_: st.DrawFn) -> Flow:
    """Any flow: stage n reads what an earlier one writes, or what comes from outside."""
    count = draw_(st.integers(1, 9))
    stages = []
    for number in range(count):
        reads = draw_(st.sampled_from(["in", *(f"c{n}" for n in range(number))]))
        more = draw_(st.sets(st.integers(number, count - 1), max_size=3))
        stages.append((f"s{number}", reads, [f"c{n}" for n in sorted({number, *more})]))
    return a_flow(*stages)


@given(flows())
def test_every_stage_and_channel_of_any_flow_is_in_its_drawing(flow: Flow) -> None:
    flow.check()
    text = draw(flow.graph)
    for name in flow.graph.stages:
        assert f"│ {name} │" in text.replace("  ", " ").replace("  ", " ")
    for name in flow.graph.links:
        assert f" {name}" in text
    assert text.count("┌") >= len(flow.graph.stages)
