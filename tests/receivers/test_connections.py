"""Who may be connected, and who has to go."""

from headrace.receivers.connections import Connections


def test_the_longest_idle_one_goes_when_another_one_comes() -> None:
    gone: list[str] = []
    connections = Connections(2)
    assert connections.admit("a", lambda: gone.append("a"))
    assert connections.admit("b", lambda: gone.append("b"))
    connections.busy("a")

    assert connections.admit("c", lambda: gone.append("c"))

    assert gone == ["b"]
    assert len(connections) == 2


def test_nobody_busy_goes() -> None:
    connections = Connections(1)
    assert connections.admit("a", lambda: None)
    connections.busy("a")
    assert not connections.admit("b", lambda: None)

    connections.idle("a")
    assert connections.admit("b", lambda: None)


def test_who_leaves_makes_a_place_and_who_left_changes_nothing() -> None:
    connections = Connections(1)
    assert connections.admit("a", lambda: None)
    connections.remove("a")
    connections.busy("a")
    connections.idle("a")
    connections.remove("a")

    assert len(connections) == 0
    assert not connections.close_longest_idle()
    assert connections.admit("b", lambda: None)


def test_who_was_idle_again_goes_after_those_idle_for_longer() -> None:
    gone: list[str] = []
    connections = Connections(2)
    connections.admit("a", lambda: gone.append("a"))
    connections.admit("b", lambda: gone.append("b"))
    connections.busy("a")
    connections.idle("a")
    connections.admit("c", lambda: gone.append("c"))
    assert gone == ["b"]
