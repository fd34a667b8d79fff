"""The manifest of a saved program, and errors that name the file and the member that is damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from tvmtarget.artifact import CHECKED_FACTS
from tvmtarget.building.leaf_function import CallFacts, LeafFacts
from tvmtarget.building.systems import SystemFacts
from tvmtarget.errors import ArtifactError, BackendError, MissingExtraError, UnknownNameError

__all__ = ["Manifest", "reading"]


class Manifest(BaseModel):
    """The manifest of a saved program, without what `read_files` checks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    version: str = ""  # of the library that wrote it
    leaves: tuple[LeafFacts, ...]
    calls: tuple[CallFacts, ...] | None = None  # None in files of older versions, which call each function once
    machines: tuple[str, ...] = ()
    replicas: dict[str, tuple[str, ...]] = {}  # machines that take turns, by the first of them
    systems: tuple[SystemFacts, ...] = ()  # of systems with files; those of older versions have none
    tuned: tuple[dict[str, Any], ...] = ()
    allow_interpreter: bool = False
    self_test: str = ""  # what computed the stored outputs; empty if there are none
    self_test_halves: dict[str, Literal["float16", "bfloat16"]] = {}

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> Self:
        """Read a manifest.

        Args:
            facts: JSON data, as `read_files` returns it.

        Returns:
            The manifest.

        Raises:
            ValueError: A field is missing, unknown, or of another type; a function is listed twice, or called but not
                listed; or a file belongs to nothing that is listed.
        """
        stated = {name: value for name, value in facts.items() if name not in CHECKED_FACTS}
        manifest = cls.model_validate_json(json.dumps(stated), strict=True)
        names = [leaf.function for leaf in manifest.leaves]
        if len(set(names)) < len(names):
            raise ValueError("it lists a function twice")
        unlisted = sorted({call.function for call in manifest.calls or ()} - set(names))
        if unlisted:
            raise ValueError(f"it calls function {unlisted[0]!r}, which it does not list")
        folders = {f"leaves/{name}" for name in names} | {f"systems/{system.function}" for system in manifest.systems}
        known = {
            "target.json",
            "program.json",
            "constants.npz",
            *(f"machines/{name}.json" for name in manifest.machines),
        }
        folders |= {"self-test"} if manifest.self_test else set()
        for name in facts["files"]:
            if name not in known and folders.isdisjoint(map(str, PurePosixPath(name).parents)):
                raise ValueError(f"file {name!r} belongs to nothing that it lists")
        return manifest


@contextmanager
def reading(path: str, member: str) -> Iterator[None]:
    """Turn any error of the block into an `ArtifactError` that names a file and a member.

    Args:
        path: A saved program.
        member: What the block reads of it.

    Yields:
        Nothing.

    Raises:
        ArtifactError: The member is damaged, or needs a plugin that is not installed.
    """
    try:
        yield
    except MissingExtraError:
        raise
    except ArtifactError as error:
        if error.path:
            raise
        problems = error.problems if repr(path) in str(error) else [f"{path!r}: {text}" for text in error.problems]
        raise ArtifactError(*problems, path=path, member=member, offset=error.offset) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        problem = f"{path!r} is damaged: {member!r}, at {where or 'its start'}: {first['msg']}"
        if first["type"] == "extra_forbidden":
            problem = (
                f"{path!r} cannot be read: {member!r} has the unknown field {where!r}; a newer version may read it"
            )
        raise ArtifactError(problem, path=path, member=member) from error
    except (BackendError, UnknownNameError) as error:  # a backend, executor, runtime or kind of another installation
        raise ArtifactError(f"{path!r} cannot be used here: {member!r}: {error}", path=path, member=member) from error
    except Exception as error:  # readers raise EOFError, KeyError, MemoryError, RecursionError, struct.error, ...
        reason = str(error) or type(error).__name__
        reason = f"it has no {error}" if type(error) is KeyError else reason
        raise ArtifactError(f"{path!r} is damaged: {member!r}: {reason}", path=path, member=member) from error
