"""Tree ensembles of ai.onnx.ml as tables: nodes that compare by `<=`, their children, and weights of leaves.

All modes of branches become `<=`, on thresholds of the element type of the inputs: `x < t` compares with the next
smaller number, `x == t` and membership are several nodes. A node may have several parents, as LightGBM's exporter
writes them. Where a missing value (NaN) goes is a child of its own if any node sends it elsewhere than a false
comparison.

Source: ONNX's definitions of TreeEnsemble, TreeEnsembleClassifier and TreeEnsembleRegressor, and ONNX Runtime for what
they leave open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

__all__ = ["AGGREGATES", "POST_TRANSFORMS", "Ensemble", "classes_of", "read_ensemble"]

Array: TypeAlias = "np.ndarray[Any, Any]"

# In the order of their numbers in version 5 of the operators.
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
POST_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_LEAF = "LEAF"

# Limits for untrusted models, whose trees may share their nodes.
_MOST_TARGETS = 1 << 20
_MOST_PLACES = 1 << 24  # nodes of one level of all trees


@dataclass(frozen=True)
class Ensemble:
    """An ensemble as tables.

    Attributes:
        targets: number of targets or classes.
        roots: the first node of each tree.
        depths: largest number of comparisons of each tree.
        features: the column that a node compares.
        thresholds: what it compares with by `<=`; of the element type of the inputs.
        children: of each node, those for a false and a true comparison; (nodes, 2). With a third and a fourth column,
            which are equal, for NaN. A leaf is its own child.
        first: where the weights of a node begin, (nodes + 1,).
        weighted: the target of each weight.
        weights: the weights.
        aggregate: one of `AGGREGATES`.
        base: what is added to each target, (targets,).
        post_transform: one of `POST_TRANSFORMS`.
        is_binary: whether a classifier of two classes has the weights of one of them; there is one target then.
        by_second: whether a classifier has weights of both of two classes, as CatBoost writes them; the label is the
            second one where its sum is above 0.
        sparse: the first target that some rows may get no weight for; None if each one gets some.
    """

    targets: int
    roots: Array
    depths: Array
    features: Array
    thresholds: Array
    children: Array
    first: Array
    weighted: Array
    weights: Array
    aggregate: str
    base: Array
    post_transform: str
    is_binary: bool
    by_second: bool
    sparse: int | None

    @property
    def is_single(self) -> bool:
        """Whether each leaf has one weight, and all weights are of one target."""
        is_leaf = self.children[:, 0] == np.arange(len(self.children))
        counts = np.diff(self.first)[is_leaf]
        return bool((counts == 1).all() and len(set(self.weighted.tolist())) == 1)


def classes_of(attributes: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the labels of a classifier that are numbers.

    Args:
        attributes: attributes of a classifier.

    Returns:
        The labels; none if they are strings.
    """
    return tuple(attributes.get("classlabels_int64s") or attributes.get("classlabels_ints") or ())


def read_ensemble(kind: str, attributes: Mapping[str, Any], dtype: str) -> Ensemble:
    """Read the attributes of an ensemble.

    Args:
        kind: TreeEnsemble, TreeEnsembleClassifier or TreeEnsembleRegressor.
        attributes: its attributes: numbers, strings, sequences of these, and arrays.
        dtype: element type of comparisons and sums: float32 or float64.

    Returns:
        The tables.

    Raises:
        ValueError: the attributes describe no ensemble.
    """
    nodes, roots, weights, targets = (_read if kind == "TreeEnsemble" else _read_classic)(kind, attributes, dtype)
    aggregate = _named(attributes.get("aggregate_function", "SUM"), AGGREGATES, "aggregate_function")
    post = _named(attributes.get("post_transform", "NONE"), POST_TRANSFORMS, "post_transform")
    features, thresholds, children = _plain_nodes(nodes, dtype)
    count = len(features)
    at, weighted, values = weights
    if not 0 < targets <= _MOST_TARGETS:
        raise ValueError(f"it has {targets} targets, not 1 to {_MOST_TARGETS}")
    if not np.isfinite(values).all():
        raise ValueError("a weight is not finite")
    has_two = kind == "TreeEnsembleClassifier" and targets == 2
    by_second = has_two and bool(weighted.any())
    if by_second:
        _check_two_classes(attributes, weighted)
    is_binary = has_two and not by_second
    if is_binary:
        targets = 1
    if len(weighted) and not ((weighted >= 0) & (weighted < targets)).all():
        raise ValueError(f"a weight is of target {int(max(weighted, key=abs))}, and there are {targets}")
    if len(np.unique(at * targets + weighted)) < len(at):
        raise ValueError("a leaf has several weights of one target")
    order = np.argsort(at, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(at, minlength=count))])
    depths, reached = _walk(roots, children)
    base = np.asarray(_given(attributes, "base_values", ()), dtype).reshape(-1)
    if by_second and len(base):
        raise ValueError("base_values of two classes that both have weights are added in no way that engines agree on")
    if len(base) not in (0, targets):
        raise ValueError(f"base_values has {len(base)} elements, and there are {targets} targets")
    has_base = bool(len(base))
    if not len(base):
        base = np.zeros(targets, dtype)
    weighted, first = weighted[order], first.astype(np.int32)
    return Ensemble(
        targets,
        roots.astype(np.int32),
        depths,
        features,
        thresholds,
        children,
        first,
        weighted.astype(np.int32),
        values[order],
        aggregate,
        base,
        post,
        is_binary,
        by_second,
        # A target with a base has a score without weights too, except for the least and the largest of them.
        None if has_base and aggregate in ("AVERAGE", "SUM") else _sparse(reached, first, weighted, targets),
    )


def _check_two_classes(attributes: Mapping[str, Any], weighted: Array) -> None:
    """Reject two classes, with weights of the second one, of which engines make different labels.

    ONNX Runtime (1.32, `tree_ensemble_aggregator.h`) makes the numbers 0 and 1 of all labels.
    """
    if not (weighted == 0).any():
        raise ValueError("it has two classes, and weights of the second one only, which engines score differently")
    if classes_of(attributes) not in ((), (0, 1)):
        raise ValueError(f"it has weights of two classes, and their labels are {classes_of(attributes)}, not 0 and 1")


@dataclass(frozen=True)
class _Nodes:
    """Nodes as they are written; a leaf has mode LEAF."""

    features: Array
    values: Array
    modes: Array
    yes: Array
    no: Array
    missing: Array
    members: Mapping[int, Sequence[float]]


def _given(attributes: Mapping[str, Any], name: str, default: Any) -> Any:  # noqa: ANN401
    """Return an attribute that is also written as a tensor."""
    for key in (f"{name}_as_tensor", name):
        value = attributes.get(key)
        if value is not None and np.size(value):
            return value
    return default


def _named(value: object, names: Sequence[str], attribute: str) -> str:
    """Return the name of a choice, which is a number in version 5."""
    if isinstance(value, int) and 0 <= value < len(names):
        return names[value]
    if value in names:
        return str(value)
    raise ValueError(f"{attribute} is {value!r}, not one of {', '.join(names)}")


def _integers(attributes: Mapping[str, Any], *names: str) -> list[Array]:
    return [np.asarray(attributes.get(name, ()), np.int64).reshape(-1) for name in names]


def _read_classic(
    kind: str, attributes: Mapping[str, Any], dtype: str
) -> tuple[_Nodes, Array, tuple[Array, Array, Array], int]:
    """Read the attributes of versions 1 to 3: nodes and leaves are one list, with identifiers by tree."""
    prefix = "class" if kind == "TreeEnsembleClassifier" else "target"
    names = ("treeids", "nodeids", "featureids", "truenodeids", "falsenodeids")
    trees, ids, features, yes, no = _integers(attributes, *(f"nodes_{name}" for name in names))
    modes = np.asarray(attributes.get("nodes_modes", ()), object)
    values = np.asarray(_given(attributes, "nodes_values", ()), dtype)
    if not len(trees) or len({len(one) for one in (trees, ids, features, yes, no, modes, values)}) > 1:
        raise ValueError("the attributes nodes_... are not of one length, or empty")
    places = {pair: at for at, pair in enumerate(zip(trees.tolist(), ids.tolist(), strict=True))}
    if len(places) < len(trees):
        raise ValueError("two nodes have the same nodes_treeids and nodes_nodeids")

    def find(of: Array, wanted: Array) -> Array:
        pairs = zip(of.tolist(), wanted.tolist(), strict=True)
        return np.array([places.get(pair, -1) for pair in pairs], np.int64)

    is_leaf = modes == _LEAF
    own = np.arange(len(trees))
    yes, no = (np.where(is_leaf, own, find(trees, side)) for side in (yes, no))
    if (yes < 0).any() or (no < 0).any():
        raise ValueError(f"tree {trees[np.flatnonzero((yes < 0) | (no < 0))[0]]} has no node that a branch leads to")
    starts = np.flatnonzero(np.concatenate([[True], trees[1:] != trees[:-1]]))
    if len(starts) > len(np.unique(trees)):
        raise ValueError("the nodes of a tree are not together")
    of, at, weighted = _integers(attributes, f"{prefix}_treeids", f"{prefix}_nodeids", f"{prefix}_ids")
    weights = np.asarray(_given(attributes, f"{prefix}_weights", ()), dtype)
    if len({len(of), len(at), len(weighted), len(weights)}) > 1:
        raise ValueError(f"the attributes {prefix}_... are not of one length")
    at = find(of, at)
    if (at < 0).any():
        raise ValueError(f"tree {of[at < 0][0]} has no node that a weight is of")
    kept = is_leaf[at]  # weights of branches are never used
    nodes = _Nodes(features, values, modes, yes, no, _missing(attributes, len(trees)), {})
    targets = len(classes_of(attributes)) if prefix == "class" else int(attributes.get("n_targets", 1))
    if prefix == "class" and not targets:
        targets = len(attributes.get("classlabels_strings") or ())
    return nodes, starts, (at[kept], weighted[kept], weights[kept]), targets


def _read(
    _kind: str, attributes: Mapping[str, Any], dtype: str
) -> tuple[_Nodes, Array, tuple[Array, Array, Array], int]:
    """Read the attributes of version 5: branches and leaves are two lists."""
    names = ("featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs", "modes")
    features, yes, no, yes_leaf, no_leaf, codes = _integers(attributes, *(f"nodes_{name}" for name in names))
    (roots, weighted) = _integers(attributes, "tree_roots", "leaf_targetids")
    splits = np.asarray(attributes.get("nodes_splits", ()), dtype).reshape(-1)
    weights = np.asarray(attributes.get("leaf_weights", ()), dtype).reshape(-1)
    count, leaves = len(features), len(weights)
    if not count or {len(one) for one in (yes, no, yes_leaf, no_leaf, codes, splits)} != {count}:
        raise ValueError("the attributes nodes_... are not of one length, or empty")
    if len(weighted) != leaves:
        raise ValueError("leaf_targetids and leaf_weights are not of one length")
    for side, is_leaf in ((yes, yes_leaf), (no, no_leaf)):
        if not ((side >= 0) & (side < np.where(is_leaf == 1, leaves, count))).all():
            raise ValueError("a branch leads to no node")
    if not len(roots) or not ((roots >= 0) & (roots < count)).all():
        raise ValueError("a tree has no root")
    if not ((codes >= 0) & (codes < len(_MODES))).all():
        raise ValueError(f"a mode is none of 0 to {len(_MODES) - 1}")
    yes, no = np.where(yes_leaf == 1, count + yes, yes), np.where(no_leaf == 1, count + no, no)
    own = count + np.arange(leaves)
    members = _members(attributes, np.flatnonzero(codes == _MODES.index("BRANCH_MEMBER")), dtype)

    def extended(array: Array, fill: Any) -> Array:  # noqa: ANN401
        return np.concatenate([array, np.full(leaves, fill, array.dtype)])

    nodes = _Nodes(
        extended(features, 0),
        extended(splits, 0),
        extended(np.array(_MODES, object)[codes], _LEAF),
        np.concatenate([yes, own]),
        np.concatenate([no, own]),
        extended(_missing(attributes, count), 0),
        members,
    )
    return nodes, roots, (own, weighted, weights), int(attributes.get("n_targets", 1))


def _missing(attributes: Mapping[str, Any], count: int) -> Array:
    (missing,) = _integers(attributes, "nodes_missing_value_tracks_true")
    if len(missing) not in (0, count):
        raise ValueError("nodes_missing_value_tracks_true is not as long as there are nodes")
    return missing if len(missing) else np.zeros(count, np.int64)


def _members(attributes: Mapping[str, Any], nodes: Array, dtype: str) -> dict[int, list[float]]:
    """Return the members that nodes compare with; lists of them end with NaN."""
    lists: list[list[float]] = [[]]
    for value in np.asarray(attributes.get("membership_values", ()), dtype).reshape(-1).tolist():
        if value != value:
            lists.append([])
        else:
            lists[-1].append(value)
    if len([one for one in lists if one]) != len(nodes):
        raise ValueError("membership_values has no list for each node of mode BRANCH_MEMBER")
    return dict(zip(nodes.tolist(), lists, strict=False))


def _plain_nodes(nodes: _Nodes, dtype: str) -> tuple[Array, Array, Array]:
    """Return features, thresholds and children of nodes that all compare by `<=`."""
    wrong = next((mode for mode in set(nodes.modes) if mode not in (*_MODES, _LEAF)), None)
    if wrong is not None:
        raise ValueError(f"a mode is {wrong!r}, not one of {', '.join((*_MODES, _LEAF))}")
    is_leaf = nodes.modes == _LEAF
    own = np.arange(len(is_leaf))
    if (~is_leaf & ((nodes.yes == own) | (nodes.no == own))).any():
        raise ValueError("a tree has a cycle")
    if np.isnan(nodes.values[~is_leaf & (nodes.modes != "BRANCH_MEMBER")]).any():
        raise ValueError("a branch compares with NaN")
    if (nodes.features[~is_leaf] < 0).any():
        raise ValueError("a branch compares a column below 0")
    features = np.where(is_leaf, 0, nodes.features)
    lowest = np.array(-np.inf, dtype)

    def below(values: Array) -> Array:
        # Nothing is below the smallest number: a comparison with NaN is false.
        return np.where(values == lowest, np.array(np.nan, dtype), np.nextafter(values, lowest))

    is_strict = np.isin(nodes.modes, ("BRANCH_LT", "BRANCH_GTE"))
    is_swapped = np.isin(nodes.modes, ("BRANCH_GTE", "BRANCH_GT"))
    thresholds = np.where(is_strict, below(nodes.values), nodes.values)
    other, less = np.where(is_swapped, nodes.yes, nodes.no), np.where(is_swapped, nodes.no, nodes.yes)
    # NaN differs from every number; all other comparisons with it are false.
    missing = np.where((nodes.missing == 1) | (nodes.modes == "BRANCH_NEQ"), nodes.yes, nodes.no)
    rows = [*zip(features.tolist(), thresholds.tolist(), other.tolist(), less.tolist(), missing.tolist(), strict=True)]
    for at in np.flatnonzero(np.isin(nodes.modes, ("BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER"))).tolist():
        feature, yes, no = int(features[at]), int(nodes.yes[at]), int(nodes.no[at])
        if nodes.modes[at] == "BRANCH_NEQ":
            yes, no = no, yes
        values = nodes.members.get(at) or [float(nodes.values[at])]
        for number, value in enumerate(values):
            place = at if number == 0 else len(rows) - 1
            last = number == len(values) - 1
            # A node for the value, one for what is below it, and behind those the next value.
            behind = no if last else len(rows) + 1
            lower = float(below(np.array(value, dtype)))
            rows[place] = (feature, value, behind, len(rows), int(missing[at]))
            rows.append((feature, lower, yes, behind, yes))
            if not last:
                rows.append(rows[place])
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    others, lesses, missings = (column.astype(np.int32) for column in columns[2:])
    pairs = [others, lesses]
    if (missings != others).any():
        pairs += [missings, missings]
    return columns[0].astype(np.int32), columns[1].astype(dtype), np.stack(pairs, axis=1)


def _walk(roots: Array, children: Array) -> tuple[Array, list[Array]]:
    """Return the depth of each tree, and the leaves that each one may reach."""
    count = len(children)
    is_leaf = (children == np.arange(count)[:, None]).all(axis=1)
    depths = np.zeros(len(roots), np.int32)
    trees, front = np.arange(len(roots)), roots.astype(np.int64)
    leaves: list[Array] = []
    for depth in range(count + 1):
        done = is_leaf[front]
        leaves.append(trees[done] * count + front[done])
        depths[trees] = depth
        trees, front = trees[~done], front[~done]
        if not len(front):
            break
        width = children.shape[1]
        if len(front) > _MOST_PLACES:
            raise ValueError(f"a level of its trees has more than {_MOST_PLACES} nodes")
        found = np.unique(np.repeat(trees, width) * count + children[front].reshape(-1))
        trees, front = np.divmod(found, count)
    else:
        raise ValueError("a tree has a cycle")
    trees, front = np.divmod(np.unique(np.concatenate(leaves)), count)
    return depths, [front[trees == tree] for tree in range(len(roots))]


def _sparse(reached: Sequence[Array], first: Array, weighted: Array, targets: int) -> int | None:
    """Return the first target that no tree has in all of its leaves."""
    open_targets = set(range(targets))
    for leaves in reached:
        if not open_targets:
            break
        sets = [set(weighted[first[leaf] : first[leaf + 1]].tolist()) for leaf in leaves.tolist()]
        open_targets -= set.intersection(*sets) if sets else set()
    return min(open_targets, default=None)
