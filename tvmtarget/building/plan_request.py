"""Turn the arguments of `build` and `tune` into a plan: the program, the target, its host, executor and runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from tvmtarget.backends.protocol import Array
from tvmtarget.errors import TargetError, did_you_mean, raise_all
from tvmtarget.ir.module import IRModule
from tvmtarget.partition.options import OptionValues
from tvmtarget.partition.plan import Plan, decompose
from tvmtarget.target.node import Executor, Runtime
from tvmtarget.target.tree import Target, TargetLike, as_target
from tvmtarget.target.trusted_attributes import reject_trusted

if TYPE_CHECKING:
    import onnx
    import tvm

__all__ = ["PlanRequest", "ProgramLike", "with_where"]

ProgramLike: TypeAlias = "IRModule | Plan | onnx.ModelProto | tvm.IRModule | tvm.tirx.PrimFunc | str | Path | bytes"


def with_where(options: Mapping[str, object] | None, where: object) -> dict[str, object]:
    """Add the argument `where` to options of a decomposition.

    Args:
        options: Fields of `PartitionOptions` by name, or None.
        where: Constraints by name, or None.

    Returns:
        The options.

    Raises:
        TargetError: Both state constraints.
    """
    if where is None:
        return dict(options or {})
    if "where" in (options or {}):
        raise TargetError("where is given as an argument and in options; give it once")
    return {**(options or {}), "where": where}


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """A program, a target, and the options of a decomposition.

    Attributes:
        module: A program, an ONNX file, its bytes or model, a module of Apache TVM, or a plan.
        target: The target; the module's own if None.
        target_host: The host of the root of the target.
        executor: The executor of the root; the target's own if None.
        runtime: The runtime of the root; the target's own if None.
        params: Values of parameters of the program, which become constants.
        entry: The entry function of a module.
        options: Fields of `PartitionOptions` by name, except costs.
    """

    module: ProgramLike
    target: TargetLike | None = None
    target_host: TargetLike | None = None
    executor: Executor | str | Mapping[str, object] | None = None
    runtime: Runtime | str | Mapping[str, object] | None = None
    params: Mapping[str, Array] | None = None
    entry: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)

    def plan(self) -> Plan:
        """Decompose the program; a plan is returned as it is.

        Returns:
            The plan.

        Raises:
            TargetError: An option is unknown, or a plan is given together with a change of it.
            InfeasibleError: Operations fit no site.
        """
        known = OptionValues.__annotations__
        unknown = sorted(self.options.keys() - known)
        raise_all(TargetError, [f"unknown option {name!r} of decompose{did_you_mean(name, known)}" for name in unknown])
        if isinstance(self.module, Plan):
            self._check_plan(self.module)
            return self.module
        own = self.module.target if isinstance(self.module, IRModule) else None
        # A target from an untrusted program could name a scheduler that would receive the inputs of the user.
        if self.target is None and isinstance(self.module, IRModule) and own is not None and not self.module.is_trusted:
            reject_trusted(own, "the target in the program")
        target = self.root(own)
        module = IRModule.of(self.module, target, self.entry).bind(self.params or {})
        return decompose(module, target, **cast("OptionValues", self.options))

    def root(self, default: TargetLike | None = None) -> Target:
        """Return the target with the host, executor and runtime that are given.

        Args:
            default: The target to use if none is given.

        Returns:
            The target, not yet resolved.

        Raises:
            TargetError: There is no target, or its host or fallback device contradicts the request.
        """
        given = self.target if self.target is not None else default
        if given is None:
            raise TargetError("no target is given and the module has none; pass one, such as 'llvm'")
        tree = as_target(given, host=self.target_host)
        if self.executor is not None:
            tree = tree.replace(executor=Executor.from_json(self.executor))
        if self.runtime is not None:
            tree = tree.replace(runtime=Runtime.from_json(self.runtime))
        return tree

    def _check_plan(self, plan: Plan) -> None:
        """Raise `TargetError` for arguments that would change a plan, and for a hypothetical plan."""
        fields = ("target_host", "executor", "runtime", "params", "entry")
        changes = {name: getattr(self, name) for name in fields} | dict(self.options)
        names = [name for name, value in changes.items() if value]
        target = None if self.target is None else PlanRequest(module=plan, target=self.target).root()
        if target is not None and target.resolve() != plan.topology.root:
            names.insert(0, "target")
        if names:
            raise TargetError(
                f"a plan is built as it is, so {', '.join(map(repr, names))} cannot be given with it; pass the "
                "unpartitioned program, or partition it again: decompose(plan.request.module, target, where=...)"
            )
        supposed = plan.hypotheses()
        if supposed:
            raise TargetError(f"the plan of a what-if question that supposes support is not built: {supposed[0]}")
