"""Union-find against the connected components of networkx."""

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from tvmtarget.union_find import UnionFind


@given(count=st.integers(1, 12), data=st.data())
def test_sets_are_the_connected_components_in_order_of_their_first_items(count, data):
    item = st.integers(0, count - 1)
    pairs = data.draw(st.lists(st.tuples(item, item)))
    sets, graph = UnionFind(range(count)), nx.Graph(pairs)
    graph.add_nodes_from(range(count))
    for a, b in pairs:
        sets.union(a, b)
    assert sets.groups() == sorted(tuple(sorted(found)) for found in nx.connected_components(graph))
    assert all(sets.find(index) == group[0] for group in sets.groups() for index in group)
