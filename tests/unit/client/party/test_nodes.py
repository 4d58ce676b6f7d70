"""The order in which nodes are tried."""

from waystation.client.party.nodes import Nodes


def test_nodes_are_asked_in_turn() -> None:
    nodes = Nodes(["a", "b", "c"], avoid_s=30.0)

    assert [nodes.next(0.0) for _ in range(4)] == ["a", "b", "c", "a"]


def test_a_node_that_failed_waits_unless_it_is_the_only_one() -> None:
    nodes = Nodes(["a", "b"], avoid_s=30.0)
    nodes.avoid("a", 0.0)
    assert nodes.next(1.0) == "b"
    nodes.avoid("b", 0.0)
    assert nodes.next(1.0) in {"a", "b"}

    assert Nodes(["a"], avoid_s=30.0).another("a", 0.0) is None


def test_what_a_node_recommends_comes_first() -> None:
    nodes = Nodes(["a", "b"], avoid_s=30.0)
    nodes.avoid("c", 0.0)
    nodes.recommend(["c", "b"])

    assert [nodes.next(1.0) for _ in range(3)] == ["c", "b", "a"]


def test_a_standby_is_somewhere_else() -> None:
    nodes = Nodes(["a", "b", "c"], avoid_s=30.0)
    nodes.add(["b", "d"])
    nodes.avoid("b", 0.0)

    assert nodes.another("a", 1.0) == "c"
    assert nodes.another("c", 1.0) == "a"
    assert nodes.another("a", 31.0) == "b"
