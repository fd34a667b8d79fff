"""Resolve constraints in a target: names of children and paths become paths of its nodes."""

from __future__ import annotations

from collections.abc import Iterator

from tvmtarget.errors import UnknownNameError, did_you_mean
from tvmtarget.target.constraints.constraint import Constraint, known_words
from tvmtarget.target.constraints.satisfaction import satisfies
from tvmtarget.target.target_node import TargetNode
from tvmtarget.target.topology import Topology

__all__ = ["leaves_at", "resolve_names", "site_constraint", "unknown_words"]


def resolve_names(constraint: Constraint, topology: Topology) -> Constraint:
    """Resolve the names in a constraint to paths of a target.

    A bare word that is the name of a child means that child, else it is a kind or a key; a word with conditions always
    is a kind or a key. Paths are spelled as the topology does. A constraint with children is replaced by the paths of
    the systems that meet it, as operations with such a constraint run inside of one.

    Args:
        constraint: a constraint as a user or a module wrote it, in any expression.
        topology: the sites of the target.

    Returns:
        An equivalent constraint without names of children.

    Raises:
        UnknownNameError: for a path of no node, and for children that no system has.
    """
    if constraint.path is not None:
        return constraint.replace(path=topology.canonical(constraint.path))
    if constraint.children:
        return _in_systems(constraint, topology)
    # Names of children come before kinds and keys, as users choose them for this target.
    nodes = topology.named(constraint.word) if constraint.word is not None and _is_bare(constraint) else ()
    if nodes:
        return _with_modifiers(Constraint.at_any(nodes), constraint)
    return constraint.map_nested(lambda nested: resolve_names(nested, topology))


def site_constraint(site: Constraint | TargetNode | str, topology: Topology) -> Constraint:
    """Read the name of a site.

    Args:
        site: a path (`node0/cpu`, `@cpu`), a child's name, a kind, a key, or any other constraint.
        topology: the sites of the target.

    Returns:
        The resolved constraint.

    Raises:
        UnknownNameError: for a word that is no name, kind or key of the target.
    """
    is_path = isinstance(site, str) and (site == "" or "/" in site.partition("(")[0]) and not site.startswith("@")
    parsed = Constraint.at(str(site)) if is_path else Constraint.parse(site)
    resolved = resolve_names(parsed, topology)
    if any(unknown_words(resolved, topology)):
        raise UnknownNameError(_no_site(site, topology))
    return resolved


def leaves_at(site: Constraint | TargetNode | str, topology: Topology) -> frozenset[str]:
    """Return the leaves at and below sites.

    Args:
        site: a site as in `site_constraint`.
        topology: the sites of the target.

    Returns:
        Paths of leaves, at least one.

    Raises:
        UnknownNameError: if there are none.
    """
    constraint, root = site_constraint(site, topology), topology.root
    found = frozenset(leaf.path for leaf in topology.leaves() if constraint.check(leaf.target, leaf.path, root))
    if not found:
        raise UnknownNameError(_no_site(site, topology))
    return found


def _no_site(site: Constraint | TargetNode | str, topology: Topology) -> str:
    known = {word for leaf in topology.leaves() for word in (leaf.path, leaf.target.kind, *leaf.target.keys)}
    return f"no site of the target is or has {str(site)!r}{did_you_mean(str(site), known)}"


def unknown_words(constraint: Constraint, topology: Topology) -> Iterator[str]:
    """Report the words of a constraint that no node or registered kind has.

    Args:
        constraint: a resolved constraint.
        topology: the sites of the target.

    Yields:
        One message for each word that is no name, kind or key, with the nearest known one.
    """
    unknown = [word for word in constraint.words() if word not in known_words()]
    if not unknown:  # most constraints; the others are looked up in the whole tree
        return
    words = known_words() | {key for _, node in topology.root.walk() for key in (node.kind, *node.keys)}
    for word in unknown:
        if word not in words:
            names = {node.name for _, node in topology.root.walk() if node.name is not None}
            yield f"no target kind, key or child {word!r}{did_you_mean(word, words | names)}"


def _is_bare(constraint: Constraint) -> bool:
    return not constraint.conditions and not any(constraint.parts())


def _in_systems(constraint: Constraint, topology: Topology) -> Constraint:
    plain = constraint.replace(is_negated=False, weight=None)
    found = [path for path, node in topology.root.walk() if plain.check(node, path, topology.root)]
    if not found:
        missed = [part.text for reason in satisfies(topology.root, plain).parts for part in reason.parts if not part]
        raise UnknownNameError(f"no system of the target meets {plain}: {', '.join(missed) or 'it has none'}")
    return _with_modifiers(Constraint.at_any(found), constraint)


def _with_modifiers(nodes: Constraint, written: Constraint) -> Constraint:
    """Return a constraint with the negation and preference of the one that it replaces."""
    return nodes.replace(is_negated=nodes.is_negated != written.is_negated, weight=written.weight)
