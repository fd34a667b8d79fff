"""Compile the leaf functions of a plan, each once, unless an earlier build or the compile cache has its code.

Code is shared in three ways. Functions of earlier builds are found by all that a build depends on. Functions of one
build share code by all that code depends on, which leaves out names and sites. The compile cache adds to that key the
versions of the code generator; with a tuning log, the lookups that led to the stored code are repeated, and have to
have the same results.

Functions whose native files are as good as compiling are compiled by several processes, if that saves more time than
these take to start.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from tvmtarget.backends.compile_worker import compile_in_processes
from tvmtarget.backends.machine import processors
from tvmtarget.backends.protocol import CompileRequest, FixedSchedules
from tvmtarget.backends.sharing import build_key, code_key, function_key, stored_key
from tvmtarget.building.leaf_function import LeafCode, LeafFunction, compile_function
from tvmtarget.compile_cache import CompileCache
from tvmtarget.errors import BackendError, CompileError, FileError
from tvmtarget.human_units import counted
from tvmtarget.ir.relax.leaf_module import external_module_json
from tvmtarget.partition.outline.composites import with_composites
from tvmtarget.partition.outline.outlining import SubgraphRecord
from tvmtarget.partition.plan import Plan
from tvmtarget.untrusted import parse_json

if TYPE_CHECKING:
    from tvmtarget.building.tuned_schedules import LogSchedules

__all__ = ["Progress", "compile_leaves", "log_schedules"]

# Called with the current work, the number of finished functions, and the number of all functions.
Progress = Callable[[str, int, int], None]

# Processor seconds in which the processes start, Python and TVM, on one processor; more start in the same time.
_START_SECONDS = 4.0
_LOOKUPS = "lookups.json"
_MOST_VARIANTS = 8  # of one function by different logs; more are forgotten, the oldest first


@dataclass
class _Task:
    """A leaf function of a build.

    Attributes:
        leaf: The function.
        request: What is compiled.
        label: What progress reports name.
        key: The key for later builds in this process.
        shared_key: The key among the functions of this build; None if code is not shared.
        stored_key: The key in the compile cache; None if native files are no substitute for compiling.
        code: The code, once it is found or compiled.
    """

    leaf: LeafFunction
    request: CompileRequest
    label: str
    key: str
    shared_key: str | None
    stored_key: str | None
    code: LeafCode | None = None

    @property
    def schedules(self) -> LogSchedules | None:
        """The lookups in a tuning log."""
        return log_schedules(self.request)

    @property
    def leaf_code(self) -> LeafCode:
        """The code, which is found or compiled."""
        if self.code is None:
            raise BackendError(f"function {self.request.name!r} of @{self.request.site or '.'} was not compiled")
        return self.code

    def found(self, code: LeafCode, schedules: LogSchedules | None) -> None:
        """Set code that was found, and the lookups that lead to it."""
        # The request keeps the lookups that led to this code, so that a later build can repeat them.
        if self.request.schedules is not schedules:
            self.request = replace(self.request, schedules=schedules)
        self.code = code


def log_schedules(request: CompileRequest) -> LogSchedules | None:
    """Return the lookups in a tuning log that a request has.

    Args:
        request: A function that is compiled.

    Returns:
        The lookups, or None if the function is compiled without a log.
    """
    if request.schedules is None:
        return None
    from tvmtarget.building.tuned_schedules import LogSchedules  # most builds have no log

    return request.schedules if isinstance(request.schedules, LogSchedules) else None


def compile_leaves(
    plan: Plan,
    leaves: Mapping[str, LeafFunction],
    earlier: Mapping[str, LeafFunction],
    *,
    cache: CompileCache | None,
    jobs: int | None,
    progress: Progress | None,
) -> None:
    """Compile some leaf functions of a plan, and set their code.

    Args:
        plan: The plan.
        leaves: The functions by name.
        earlier: Functions of earlier builds by key.
        cache: The compile cache, or None.
        jobs: The number of processes that compile; None for one on each processor if that saves time.
        progress: Called while functions are compiled.

    Raises:
        BackendError: A function cannot be compiled; the first one in the order of the plan is named.
    """
    tasks = list(_tasks(plan, leaves))
    first: dict[str, _Task] = {}
    waiting: list[_Task] = []
    for task in tasks:
        known = earlier.get(task.key)
        repeated = None if known is None else _repeated_lookups(task.schedules, known)
        if known is not None and (task.schedules is None or repeated is not None):
            task.found(known.code, repeated)
        elif task.shared_key is not None and first.setdefault(task.shared_key, task) is not task:
            continue  # an equal function before this one gets the code
        elif cache is None or not _read(cache, task):
            waiting.append(task)
    _compile_all(waiting, len(tasks), cache=cache, jobs=jobs, progress=progress)
    for task in tasks:
        if task.code is None and task.shared_key is not None:
            same = first[task.shared_key]
            task.found(same.leaf_code, same.schedules)
        task.leaf.set_code(task.request, task.leaf_code, task.key)


def _compile_all(
    tasks: Sequence[_Task], total: int, *, cache: CompileCache | None, jobs: int | None, progress: Progress | None
) -> None:
    """Compile functions one by one, and those that are left by processes once that saves time."""
    done = total - len(tasks)

    def report(label: str, more: int) -> None:
        if progress is not None:
            progress(label, done + more, total)

    began, refusals = 0.0, list[CompileError]()
    for number, task in enumerate(tasks):
        if number == 1:
            began = time.perf_counter()  # the first function pays for importing its code generator
        left = tasks[number:]
        count = _processes(len(left), (time.perf_counter() - began) / (number - 1) if number > 1 else 0.0, jobs)
        if count > 1 and all(one.stored_key is not None for one in left):
            label = f"compile {counted(len(left), 'function')} in {count} processes"
            report(label, number)
            _compile_in_processes(left, count, cache, partial(report, label), number)
            break
        report(task.label, number)
        try:
            _compile(task, cache)
        except CompileError as error:
            # All refusals are found at once: a build plans anew once for them, and not once for each function.
            if not error.refused:
                raise
            refusals.append(error)
    if refusals:
        problems = [problem for error in refusals for problem in error.problems]
        refused = {name: ops for error in refusals for name, ops in error.refused.items()}
        raise CompileError(*problems, function=refusals[0].function, refused=refused)
    report("compiled", len(tasks))


def _processes(functions: int, seconds: float, jobs: int | None) -> int:
    """Return by how many processes functions are compiled, if one function takes some seconds."""
    if jobs is not None:
        return min(jobs, functions)
    count = min(processors(), functions)
    return count if seconds * (functions - functions / count) > _START_SECONDS else 1


def _compile_in_processes(
    tasks: Sequence[_Task], count: int, cache: CompileCache | None, report: Callable[[int], None], done: int
) -> None:
    """Compile functions by several processes; those without files, for lack of a linker, in this process."""
    ended = itertools.count(done + 1)
    requests = [(task.leaf.backend.name, task.request) for task in tasks]
    outcomes = compile_in_processes(requests, count, lambda _: report(next(ended)))
    for number, outcome in sorted(outcomes.items()):
        request = tasks[number].request
        if outcome.has_ended:
            raise CompileError(
                f"function {request.name!r} of @{request.site or '.'} {outcome.problem}; jobs=1 (--jobs 1) compiles it "
                "in this process, with all of the memory",
                function=request.name,
            )
        if outcome.problem and outcome.is_defect:
            raise CompileError(outcome.problem, function=request.name)
        if outcome.problem:
            raise BackendError(outcome.problem)
        if outcome.files:
            _store(cache, tasks[number], outcome.files)
        else:
            _compile(tasks[number], cache)


def _tasks(plan: Plan, leaves: Mapping[str, LeafFunction]) -> Iterator[_Task]:
    functions: dict[str, SubgraphRecord] = {}
    for subgraph in plan.subgraphs:
        if subgraph.function in leaves:
            functions.setdefault(subgraph.function, subgraph)
    for subgraph in functions.values():
        leaf = leaves[subgraph.function]
        backend, request = leaf.backend, leaf.request
        function = function_key(plan.module[subgraph.function], plan.module.by_name)
        is_tuned = log_schedules(request) is not None
        # `choose_backends` pairs the TVM backend with a kind that it does not list only for an external code generator
        # (BYOC).
        is_external = backend.name == "tvm" and request.target.kind not in backend.kinds
        if is_external:
            whole = with_composites(plan.module, plan.topology)[subgraph.function]
            request = replace(request, source=external_module_json(whole, request.target.kind))
        shared_key = None if is_external else code_key(function, request.target, backend)
        if shared_key is not None and is_tuned:
            # The lookups of a log depend on the whole target, the code only on the attributes that are honoured.
            shared_key = f"{request.target.digest} {shared_key}"
        yield _Task(
            leaf=leaf,
            request=request,
            label=f"compile {subgraph.function} for @{subgraph.site or '.'}",
            # The same function may have other code with the schedules of a log than without.
            key=build_key(function, request.target, subgraph.site, backend) + (" by a log" if is_tuned else ""),
            shared_key=shared_key,
            stored_key=stored_key(function, request.target, backend),
        )


def _repeated_lookups(schedules: LogSchedules | None, earlier: LeafFunction) -> LogSchedules | None:
    """Return the lookups of an earlier build made again, or None if the log has other results now."""
    before = log_schedules(earlier.request)
    return schedules.repeated(before) if schedules is not None and before is not None else None


def _read(cache: CompileCache, task: _Task) -> bool:
    """Set the code of a function from the cache; return whether it has any."""
    key = task.stored_key
    if key is None:
        return False
    schedules = task.schedules
    if schedules is None:
        return _read_code(cache, task, key, None)
    for events in _variants(cache, key):
        repeated = schedules.replayed(events)
        if repeated is not None:
            return _read_code(cache, task, _variant_key(key, events), repeated)
    return False


def _read_code(cache: CompileCache, task: _Task, key: str, schedules: LogSchedules | None) -> bool:
    files = cache.get(key)
    if not files:
        return False
    _set_native(cache, task, key, files, schedules)
    return True


def _set_native(
    cache: CompileCache | None, task: _Task, key: str, files: Mapping[str, bytes], schedules: LogSchedules | None
) -> None:
    task.request = replace(task.request, native=files)
    # The log may be closed when code is compiled again: its schedules stay those of this build.
    bodies = {} if schedules is None else {(one.key, one.format): one.body for one in schedules.applied if one.is_used}
    request = replace(task.request, schedules=FixedSchedules(bodies) if bodies else None)
    discard = None if cache is None else partial(cache.remove, key)
    task.found(LeafCode(task.leaf.backend, request, discard=discard), schedules)


def _compile(task: _Task, cache: CompileCache | None) -> None:
    compiled = compile_function(task.leaf.backend, task.request)
    task.code = LeafCode(task.leaf.backend, task.request, compiled)
    files = compiled.native_files() if cache is not None and task.stored_key is not None else {}
    if cache is not None and files:
        _store(cache, task, files)


def _store(cache: CompileCache | None, task: _Task, files: Mapping[str, bytes]) -> None:
    """Write the native code of a function into the cache, and use it from now on: TVM would generate it again."""
    key, schedules = str(task.stored_key), task.schedules
    facts = {
        "function": task.request.name,
        "target": str(task.request.target),
        "backend": task.leaf.backend.version(),
    }
    if cache is not None and schedules is not None:
        events = schedules.events()
        others = [one for one in _variants(cache, key) if one != events]
        lookups = json.dumps([events, *others][:_MOST_VARIANTS])
        cache.put(f"{key} lookups", {_LOOKUPS: lookups.encode()}, **facts)
        key = _variant_key(key, events)
    if cache is not None:
        cache.put(key, files, **facts)
    _set_native(cache, task, key, files, schedules)


def _variants(cache: CompileCache, key: str) -> list[list[list[object]]]:
    """Return the lookups of each stored variant of a function that was compiled by a tuning log."""
    files = cache.get(f"{key} lookups")
    try:
        found = [] if files is None else parse_json(files[_LOOKUPS], _LOOKUPS)
    except (FileError, KeyError):
        return []
    return found if isinstance(found, list) else []


def _variant_key(key: str, events: list[list[object]]) -> str:
    return f"{key} by {hashlib.sha256(json.dumps(events, sort_keys=True).encode()).hexdigest()}"
