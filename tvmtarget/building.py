"""`build` and `load`: decompose, compile every leaf function, link them under an executor, and run."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tvmtarget.artifact import read_files, write_files
from tvmtarget.backends.machine import refuses_triple
from tvmtarget.backends.protocol import Array, Backend, Compiled, Part, backend_named, backends
from tvmtarget.errors import ArtifactError, BackendError, ModelError, RunError, TargetError, TvmTargetError, raise_all
from tvmtarget.executors.graph import Event, GraphExecutor, check_inputs
from tvmtarget.executors.program import Program, constants_of
from tvmtarget.ir.module import Constant, IRModule
from tvmtarget.ir.types import TensorType
from tvmtarget.partition.decompose import decompose
from tvmtarget.partition.plan import Plan
from tvmtarget.target.constraint import Constraint
from tvmtarget.target.layout import Layout
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.tree import Target
from tvmtarget.version import __version__

__all__ = ["Executable", "Progress", "build", "load"]

# What this version can drive; the other kinds can be described, but not built for yet.
_BUILDABLE = {"executor": ("graph",), "runtime": ("python",)}

Progress = Callable[[str, int, int], None]


def build(
    module: IRModule | Plan,
    target: Target | str | None = None,
    target_host: Target | str | None = None,
    executor: Executor | str | None = None,
    runtime: Runtime | str | None = None,
    params: Mapping[str, Array] | None = None,
    mod_name: str = "default",
    *,
    where: Mapping[str, Constraint | str | Target] | None = None,
    strict: bool = False,
    progress: Progress | None = None,
) -> Executable:
    """Compile a program for a target and link it into something that runs.

    Args:
        module: a program, or the plan of one, which is then built as it is.
        target: the tree or its text; the module's own unless given.
        target_host: what drives the root; an error where the target says otherwise.
        executor, runtime: how the program is driven; the target's own, else graph and python.
        params: values for parameters of the program, by name, which then are constants.
        mod_name: name of the program in saved files.
        where: constraints by name or operator, as for `decompose`.
        strict: refuse to interpret a leaf for which no code generator is installed.
        progress: is told (what, how many are done, of how many) as leaves are compiled.

    Raises `BackendError` for leaves that no installed code generator takes, and what `decompose` raises.
    """
    if isinstance(module, Plan):
        plan = module
    else:
        chosen = _configured(target if target is not None else module.target, target_host, executor, runtime)
        plan = decompose(_bound(module, params or {}), chosen, where=where)
    root = plan.layout.root
    problems = [
        f"{role} {node.kind!r} cannot be built for yet; this version has {', '.join(_BUILDABLE[role])}"
        for role, node in (("executor", root.executor), ("runtime", root.runtime))
        if node is not None and node.kind not in _BUILDABLE[role]
    ]
    raise_all(BackendError, problems)
    leaves = _compile_all(plan, strict=strict, progress=progress)
    program, constants = Program.of(plan.module), constants_of(plan.module)
    return Executable(root, program, constants, leaves, mod_name)


def load(path: str | Path, *, trust: bool = False) -> Executable:
    """Read a saved program. Nothing of it is executed before the first run.

    Native code in the file is used only if you `trust` where it came from; otherwise the leaves are compiled
    again, from the models that are saved beside it. Raises `ArtifactError` if the file is damaged.
    """
    manifest, files = read_files(Path(path))
    try:
        target = Target.from_json(json.loads(files["target.json"]))
        with np.load(io.BytesIO(files["constants.npz"]), allow_pickle=False) as stored:
            constants = {name: stored[name] for name in stored.files}
        leaves = {leaf["name"]: _Leaf.read(leaf, files, trust=trust) for leaf in manifest["leaves"]}
        return Executable(target, Program.read(files["program.json"]), constants, leaves, manifest["name"])
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{str(path)!r} is not complete: {error}") from error


def _configured(
    target: Target | str | None,
    target_host: Target | str | None,
    executor: Executor | str | None,
    runtime: Runtime | str | None,
) -> Target:
    """Return the target with what else was asked of it; a host that contradicts the tree's is an error."""
    tree = Target.parse(target) if isinstance(target, str) else target
    if tree is None:
        raise TargetError("no target is given and the module has none; pass one, such as 'llvm'")
    if executor is not None:
        tree = tree.replace(executor=Executor.from_json(executor))
    if runtime is not None:
        tree = tree.replace(runtime=Runtime.from_json(runtime))
    if target_host is None:
        return tree
    host = Target.parse(target_host) if isinstance(target_host, str) and target_host[:1] != "@" else target_host
    if tree.host is not None and tree.host != host:
        raise TargetError(f"two hosts are given: {str(tree.host)!r} in the target, and target_host {str(host)!r}")
    return tree.replace(host=host)


def _bound(module: IRModule, params: Mapping[str, Array]) -> IRModule:
    """Turn parameters of the entry into constants."""
    if not params:
        return module
    main = module.main
    types = {param.name: param.type for param in main.params}
    problems = [f"params has {name!r}, which is no parameter; there are {', '.join(types)}" for name in params if name not in types]
    raise_all(ModelError, problems)
    constants = []
    for name, value in params.items():
        type_ = types[name]
        if not isinstance(type_, TensorType):
            raise ModelError(f"parameter {name!r} is {type_}, and only tensors can be constants")
        array = np.asarray(value)
        if str(array.dtype) != type_.dtype:
            raise ModelError(f"params[{name!r}] is {array.dtype}, not {type_.dtype}")
        constants.append(Constant(name, TensorType(type_.dtype, array.shape), array))
    kept = tuple(param for param in main.params if param.name not in params)
    return module.with_function(main.replace(params=kept, constants=(*main.constants, *constants)))


@dataclass
class _Leaf:
    """A leaf function: where it runs, who compiles it, and what came out, once that is needed."""

    part: Part
    backend: Backend
    note: str = ""
    _compiled: Compiled | None = field(default=None, repr=False)

    @property
    def compiled(self) -> Compiled:
        if self._compiled is None:
            self._compiled = self.backend.compile(self.part)
        return self._compiled

    @cached_property
    def refusal(self) -> str | None:
        return self.backend.refuses(self.part.target)

    def describe(self) -> dict[str, Any]:
        """Return what a manifest says of the leaf."""
        return {
            "name": self.part.name,
            "site": self.part.site,
            "ops": list(self.part.ops),
            "backend": self.backend.name,
            "version": self.backend.version(),
            "note": self.note,
            "target": self.part.target.to_json(),
        }

    @classmethod
    def read(cls, facts: Mapping[str, Any], files: Mapping[str, bytes], *, trust: bool) -> _Leaf:
        folder = f"leaves/{facts['name']}/"
        native = {name.removeprefix(folder): data for name, data in files.items() if name.startswith(folder)}
        source = native.pop("source.onnx")
        backend = backend_named(facts["backend"])
        is_same = trust and backend.version() == facts["version"]
        target = Target.from_json(facts["target"])
        part = Part(facts["name"], source, facts["site"], target, tuple(facts["ops"]), native if is_same else {})
        return cls(part, backend, facts["note"])


def _compile_all(plan: Plan, *, strict: bool, progress: Progress | None) -> dict[str, _Leaf]:
    chosen: dict[str, tuple[Backend, str]] = {}
    problems: list[str] = []
    for site in dict.fromkeys(region.site for region in plan.regions):
        try:
            chosen[site] = _choose(plan.layout, site, strict=strict)
        except BackendError as error:
            problems += error.problems
    raise_all(BackendError, problems)
    leaves: dict[str, _Leaf] = {}
    for done, region in enumerate(plan.regions):
        if progress is not None:
            progress(f"compile {region.function} for @{region.site or '.'}", done, len(plan.regions))
        backend, note = chosen[region.site]
        source = plan.module.to_onnx(region.function).SerializeToString(deterministic=True)
        part = Part(region.function, source, region.site, _standing_alone(plan.layout, region.site), region.ops)
        leaves[region.function] = _Leaf(part, backend, note, backend.compile(part))
    if progress is not None:
        progress("compiled", len(plan.regions), len(plan.regions))
    return leaves


def _standing_alone(layout: Layout, path: str) -> Target:
    """Return a leaf with its host, as code generators see it."""
    site = layout[path]
    host = layout[site.host].target.replace(name=None, host=None, count=1) if site.host != path else None
    return site.target.replace(name=None, host=host, count=1)


def _choose(layout: Layout, path: str, *, strict: bool) -> tuple[Backend, str]:
    """Return the backend of a leaf, and the note that must be told if it is not the one the kind asks for."""
    target = layout[path].target
    place = f"@{path or '.'}"
    missing = None
    for backend, lacks in backends(target.kind):
        if lacks is None:
            return backend, ""
        missing = lacks
    advice = str(missing) if missing is not None else f"no backend for kind {target.kind!r} is installed"
    if target.device != "cpu":
        raise BackendError(f"{place} cannot be compiled: {advice}")
    if strict:
        raise BackendError(f"{place} would be interpreted, which strict forbids: {advice}")
    foreign = refuses_triple(target)
    if foreign is not None:
        raise BackendError(f"{place} cannot be compiled ({advice}), nor interpreted: {foreign}")
    return backend_named("numpy"), f"{place} ({target.kind}) is interpreted by numpy: {advice}"


class Executable:
    """A compiled program: `exe.run({"input": x})`, or `exe(x)` with inputs in order."""

    def __init__(
        self,
        target: Target,
        program: Program,
        constants: Mapping[str, Array],
        leaves: Mapping[str, _Leaf],
        name: str = "default",
    ) -> None:
        self.target = target
        self.name = name
        self._program = program
        self._constants = dict(constants)
        self._leaves = dict(leaves)
        self._executor = GraphExecutor(program, self._constants, self._call_leaf, self._copy)
        self._writers = {layout_domain: leaf for layout_domain, leaf in self._domains()}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in order."""
        return tuple(signature.name for signature in self._program.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs, in order."""
        return tuple(signature.name for signature in self._program.outputs)

    @property
    def notes(self) -> tuple[str, ...]:
        """What did not go as the target asks, a line each: leaves that are interpreted, and why."""
        return tuple(dict.fromkeys(leaf.note for leaf in self._leaves.values() if leaf.note))

    @property
    def backends(self) -> dict[str, str]:
        """Which backend runs each leaf function."""
        return {name: leaf.backend.name for name, leaf in self._leaves.items()}

    def __call__(self, *inputs: object) -> Array | tuple[Array, ...]:
        """Run on inputs in order; return the output, or a tuple of them if there are several."""
        if len(inputs) != len(self.inputs):
            raise RunError(f"{len(inputs)} inputs are given, and the program takes {len(self.inputs)}: {', '.join(self.inputs)}")
        results = tuple(self.run(dict(zip(self.inputs, inputs, strict=True))).values())
        return results[0] if len(results) == 1 else results

    def run(self, inputs: Mapping[str, object], *, record: Callable[[Event], None] | None = None) -> dict[str, Array]:
        """Run on inputs by name; return outputs by name.

        `record` is told of every call of a leaf function and every copy, as it happens. Raises `RunError` for
        inputs that do not fit and for leaves whose code this machine cannot execute.
        """
        values = check_inputs(self._program.inputs, inputs)
        results = self._executor.run(values, record)
        return dict(zip(self.outputs, results, strict=True))

    def profile(self, inputs: Mapping[str, object]) -> tuple[Event, ...]:
        """Run once and return every leaf call and copy in order, each with its duration in nanoseconds."""
        events: list[Event] = []
        self.run(inputs, record=events.append)
        return tuple(events)

    def save(self, path: str | Path) -> None:
        """Write the program into one file, whole or not at all; the same program makes the same bytes."""
        buffer = io.BytesIO()
        np.savez(buffer, **self._constants)  # type: ignore[arg-type]
        files = {
            "target.json": json.dumps(self.target.to_json(), sort_keys=True).encode(),
            "program.json": self._program.write(),
            "constants.npz": buffer.getvalue(),
        }
        for name, leaf in self._leaves.items():
            files[f"leaves/{name}/source.onnx"] = leaf.part.source
            files |= {f"leaves/{name}/{file}": data for file, data in leaf.compiled.native_files().items()}
        write_files(
            Path(path),
            files,
            name=self.name,
            version=__version__,
            leaves=[leaf.describe() for leaf in self._leaves.values()],
        )

    def _call_leaf(self, name: str, inputs: Sequence[Any]) -> Sequence[Any]:
        leaf = self._leaves[name]
        if leaf.refusal is not None:
            raise RunError(f"@{leaf.part.site or '.'} cannot run on this machine: {leaf.refusal}")
        try:
            return leaf.compiled.run(inputs)
        except TvmTargetError:
            raise
        except Exception as error:  # noqa: BLE001 - code generators raise many types
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            ops = ", ".join(leaf.part.ops[:3]) + (", ..." if len(leaf.part.ops) > 3 else "")
            raise RunError(f"function {name!r} of @{leaf.part.site or '.'} ({ops}) failed: {reason}") from error

    def _copy(self, value: Any, src: str, dst: str) -> Any:  # noqa: ANN401
        writer = self._writers.get(dst)
        if writer is not None and hasattr(writer.backend, "copy"):
            return writer.backend.copy(value, src, dst)
        return value.copy() if isinstance(value, np.ndarray) else value

    def _domains(self) -> Iterator[tuple[str, _Leaf]]:
        """Yield each memory with a leaf in it, whose backend copies into it."""
        layout = Layout(self.target)
        for leaf in self._leaves.values():
            yield layout[leaf.part.site].domain, leaf

