from headrace.testing.memory import watch


class Store:
    """Its methods answer what they are given, as a ledger's answer whether they did something."""

    def claim(self, done: object) -> object:
        return done

    def report(self, done: object) -> object:
        return done


def test_the_point_after_a_step_comes_only_where_the_step_has_happened() -> None:
    points: list[tuple[str, tuple[object, ...]]] = []
    store = Store()
    watch(store, "claim", lambda point, arguments: points.append((point, arguments)))
    assert store.claim(None) is None
    assert points == [("before claim", (None,))]
    assert store.claim("batch") == "batch"
    assert points[1:] == [("before claim", ("batch",)), ("after claim", ("batch",))]


def test_a_step_that_answers_nothing_has_happened_all_the_same() -> None:
    points: list[str] = []
    store = Store()
    watch(store, "report", lambda point, _arguments: points.append(point))
    store.report(None)
    assert points == ["before report", "after report"]
