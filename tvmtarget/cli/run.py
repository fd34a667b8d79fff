"""`tvmtarget run`: run a model or a compiled program on the inputs in a file."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvmtarget.cli.option_groups import with_option_groups
from tvmtarget.cli.options import AllowInterpreter, Insecure, Jobs, Json, NoCache, UsageError, check_folders, print_json
from tvmtarget.cli.plans import PlanOptions
from tvmtarget.cli.targets import OptionalTarget, TargetEdits, read_target
from tvmtarget.errors import ArtifactError, FileError, RunError
from tvmtarget.files import atomic_write, has_file, write_arrays
from tvmtarget.human_units import counted, seconds_text
from tvmtarget.untrusted import open_regular, read_arrays

if TYPE_CHECKING:
    import numpy as np

    from tvmtarget.autotune.log.applied import Applied
    from tvmtarget.building.executable import Executable
    from tvmtarget.building.output_comparison import Comparison, Tolerance
    from tvmtarget.executors.protocol import Event
    from tvmtarget.target.tree import Target

__all__ = ["pop_labels", "read_npz", "run"]


@dataclass(frozen=True)
class ComparisonOptions:
    """Options that compare the outputs of a run with those of the unpartitioned model, or with stored ones."""

    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Compare the outputs with those of the unpartitioned model; exit code 1 if they differ."
        ),
    ] = False
    self_test: Annotated[
        bool,
        typer.Option(
            "--self-test",
            help="Run a compiled program on the inputs that are stored in it, and compare with the outputs stored with "
            "them; exit code 1 if they differ.",
        ),
    ] = False
    float64: Annotated[
        bool,
        typer.Option("--float64", help="Compute the outputs that --check compares with in float64, by numpy."),
    ] = False
    rtol: Annotated[
        float | None,
        typer.Option(
            "--rtol",
            min=0,
            help="Relative tolerance of --check and --self-test; by default by data type.",
            show_default=False,
        ),
    ] = None
    atol: Annotated[
        float | None,
        typer.Option(
            "--atol",
            min=0,
            help="Absolute tolerance of --check and --self-test; by default by data type.",
            show_default=False,
        ),
    ] = None

    def reject_misuse(self, *, has_inputs: bool) -> None:
        """Check that the options go together.

        Args:
            has_inputs: Whether `--input` is given.

        Raises:
            UsageError: An option has no effect without another, or there are two sets of inputs.
        """
        if (self.rtol is not None or self.atol is not None) and not (self.check or self.self_test):
            raise UsageError("--rtol and --atol need --check or --self-test")
        if self.float64 and not self.check:
            raise UsageError("--float64 needs --check")
        if has_inputs and self.self_test:
            raise UsageError("--self-test runs on the inputs that are stored in the program; omit it or --input")

    def compare(
        self, exe: Executable, model: Path, arrays: dict[str, Any], results: dict[str, Any]
    ) -> tuple[Comparison, str] | None:
        """Compare results with those of the model, or with those that are stored in the program.

        Args:
            exe: The program.
            model: The file of the model.
            arrays: The inputs by name.
            results: The outputs by name.

        Returns:
            The comparison, and what computed the reference; None if neither is requested.
        """
        from tvmtarget.building.output_comparison import Tolerance

        tolerance = Tolerance(self.rtol, self.atol)
        if self.check:
            return _check(model, arrays, results, tolerance, float64=self.float64)
        if self.self_test and exe.self_test is not None:
            return exe.self_test.compare(results, tolerance), exe.self_test.reference
        return None


@dataclass(frozen=True)
class ProgramOptions:
    """Options that only a compiled program has, or only a model."""

    allow_interpreter: AllowInterpreter = False
    no_cache: NoCache = False
    jobs: Jobs = None
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Use the native code of a compiled program; its author can run code as you."),
    ] = False
    scheduler: Annotated[
        str | None,
        typer.Option("--scheduler", help="The Dask scheduler to run on: tls://HOST:PORT.", show_default=False),
    ] = None
    insecure: Insecure = False

    def load(self, program: Path, *, needs_model: bool, self_test: bool) -> Executable:
        """Read a compiled program.

        Args:
            program: Its file.
            needs_model: Whether other options are given that need a model.
            self_test: Whether the program has to have a self-test.

        Returns:
            The program.

        Raises:
            UsageError: An option needs a model.
            ArtifactError: The file is damaged, or has no self-test.
        """
        from tvmtarget.artifact import read_files
        from tvmtarget.building.executable import load

        if needs_model or self.allow_interpreter or self.no_cache or self.jobs:
            read_files(program)  # a plan is another error
            raise UsageError(
                f"{str(program)!r} is compiled already; --target and its edits, the options of partitioning, --log, "
                "--check, --allow-interpreter, --no-cache and --jobs need a model"
            )
        exe = load(program, trust=self.trust, scheduler=self.scheduler, insecure=self.insecure)
        if self_test and exe.self_test is None:
            raise ArtifactError(f"{str(program)!r} has no self-test; compile it with --self-test")
        return exe

    def build(
        self, model: Path, target: Target, options: PlanOptions, inputs: Path | None, *, quiet: bool
    ) -> Executable:
        """Compile a model.

        Args:
            model: Its file.
            target: The target to compile for.
            options: The options of the plan.
            inputs: The file of the inputs, None if none is given.
            quiet: Whether to show no progress.

        Returns:
            The program.

        Raises:
            UsageError: The model has inputs, and none are given.
        """
        module = options.read(model)
        _check_input_file([param.name for param in module.main.params], inputs)
        return options.build(
            module,
            _with_scheduler(target, self.scheduler, insecure=self.insecure),
            name=model.stem,
            allow_interpreter=self.allow_interpreter,
            cache=not self.no_cache,
            jobs=self.jobs,
            quiet=quiet,
        )

    def reject_misuse(self, comparing: ComparisonOptions) -> None:
        """Check that no option for compiled programs is given for a model.

        Args:
            comparing: The options of comparison.

        Raises:
            UsageError: One is given.
        """
        if comparing.self_test:
            raise UsageError("--self-test needs a compiled program; --check compares the outputs of a model")
        if self.trust:
            raise UsageError("--trust needs a compiled program; a model has no native code")
        if self.insecure and self.scheduler is None:
            raise UsageError("--insecure needs --scheduler")


@with_option_groups
def run(
    context: typer.Context,
    program: Annotated[
        Path, typer.Argument(help="An ONNX file, or a file written by `tvmtarget compile`.", show_default=False)
    ],
    *,
    target: OptionalTarget = None,
    inputs: Annotated[
        Path | None,
        typer.Option(
            "--input",
            "-i",
            help="An .npz file with the inputs by name, and optionally 'labels' to compute the accuracy.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the outputs to an .npz file.", show_default=False)
    ] = None,
    comparing: ComparisonOptions,
    profile: Annotated[
        int | None,
        typer.Option(
            "--profile",
            min=1,
            metavar="N",
            help="Print the median times of N more runs, and of each call and copy in a run.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    building: ProgramOptions,
    options: PlanOptions,
    edits: TargetEdits,
) -> None:
    """Run a model on a target, or a compiled program, and report what ran on which site."""
    from tvmtarget.artifact import is_artifact

    comparing.reject_misuse(has_inputs=inputs is not None)
    check_folders(output)
    arrays = {} if inputs is None else read_npz(inputs)
    if is_artifact(program):
        needs_model = bool(target is not None or edits or context.args or options.given or comparing.check)
        exe = building.load(program, needs_model=needs_model, self_test=comparing.self_test)
        if not comparing.self_test:
            _check_input_file(exe.inputs, inputs)
    else:
        building.reject_misuse(comparing)
        if target is None and not has_file(program):
            raise ArtifactError(f"no model or program {str(program)!r}")
        if target is None:
            raise UsageError("--target is missing; a model needs one, such as --target llvm")
        exe = building.build(program, read_target(target, edits, context.args), options, inputs, quiet=as_json)
    labels = pop_labels(arrays, exe.inputs)
    if comparing.self_test and exe.self_test is not None:
        arrays = dict(exe.self_test.inputs)
    events: list[Event] = []
    results = exe.run(arrays, record=events.append)
    report = _report(exe, events)
    if labels is not None:
        report["accuracy"] = _accuracy(next(iter(results.values())), labels)
    comparison = None
    if compared := comparing.compare(exe, program, arrays, results):
        comparison, report["reference"] = compared
        report["max_abs_error"] = comparison.max_abs
        report["check"] = comparison.to_json()
    if profile is not None:
        report["profile"] = _profile(exe, arrays, profile)
    for note in exe.notes:
        typer.echo(f"note: {note}", err=True)
    if as_json:
        print_json(report)
    else:
        _print(report, results, exe.tuned, comparison)
    # Outputs that no file can hold, and those that differ, are errors once all is printed.
    if output is not None:
        _write_npz(output, results)
    if comparison is not None and not comparison.agrees:
        expected = "self-test" if comparing.self_test else "unpartitioned model"
        raise RunError(*(f"differs from the {expected}: {problem}" for problem in comparison.problems))


def _report(exe: Executable, events: Sequence[Event]) -> dict[str, Any]:
    """Return what ran on which site, and the copies that were made."""
    from tvmtarget.executors.protocol import CopyEvent

    # Hints depend on the machine and not on the program, so that people get them, and data does not.
    notes = [note for note in exe.notes if note not in exe.hints]
    report = {"target": exe.target.tag or str(exe.target), "notes": notes, **exe.report()}
    root = exe.target.resolve()
    # Only the interpreter in this process records copies as it makes them; for others those of the program are listed.
    if [node.kind for node in (root.executor, root.runtime) if node is not None] == ["graph", "python"]:
        report["copies"] = [
            {"value": event.value, "src": event.src, "dst": event.dst, "bytes": event.nbytes}
            for event in events
            if isinstance(event, CopyEvent)
        ]
    return report


def _profile(exe: Executable, arrays: Mapping[str, Any], runs: int) -> dict[str, Any]:
    """Run a program again, and return the median times of a run and of its parts in seconds.

    The time of a part is that of all its calls in a run, as a loop calls it several times.
    """
    from time import perf_counter_ns

    from tvmtarget.executors.protocol import CallEvent

    wholes: list[int] = []
    parts: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for number in range(runs):
        begin = perf_counter_ns()
        exe.run(arrays)
        wholes.append(perf_counter_ns() - begin)
        # Apart from the whole, as drivers with loops, which may be compiled, are interpreted while parts are recorded.
        for event in exe.profile(arrays):
            if isinstance(event, CallEvent):
                part = {"call": event.call or event.function, "function": event.function}
            else:
                part = {"copy": event.value, "src": event.src, "dst": event.dst}
            parts.setdefault(tuple(part.items()), [0] * runs)[number] += event.duration_ns
    return {
        "runs": runs,
        "seconds": median(wholes) / 1e9,
        "parts": [{**dict(part), "seconds": median(times) / 1e9} for part, times in parts.items()],
    }


def _check_input_file(names: Iterable[str], inputs: Path | None) -> None:
    """Raise `UsageError` if there are inputs, but no file of them."""
    if inputs is None and (missing := ", ".join(map(repr, names))):
        stored = "--self-test to run a compiled program on those stored in it"
        raise UsageError(f"pass inputs by --input, or {stored}; {missing} must have values")


def _with_scheduler(target: Target, scheduler: str | None, *, insecure: bool) -> Target:
    """Return a target whose runtime connects to a Dask scheduler; the target itself without one."""
    if scheduler is None:
        return target
    if target.runtime is None or target.runtime.kind != "dask":
        raise UsageError(f"--scheduler {scheduler} needs --runtime dask")
    from tvmtarget.target.node import Runtime

    return target.replace(runtime=Runtime("dask", {**target.runtime.attrs, "address": scheduler, "insecure": insecure}))


def read_npz(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Read arrays by name.

    Args:
        path: An .npz file.

    Returns:
        The arrays.

    Raises:
        RunError: The file cannot be read.
    """
    with open_regular(path, "input file", most="artifact-bytes", error=RunError) as stream:
        # The magic text of an .npy file, which is easily mistaken for an .npz file.
        if stream.read(6) == b"\x93NUMPY":
            raise RunError(f"input file {str(path)!r} holds one unnamed array; write it with numpy.savez")
        try:
            return read_arrays(stream, f"input file {str(path)!r}")
        except FileError as error:
            raise RunError(f"{error}; write one with numpy.savez({str(path)!r}, name=array)") from error


def pop_labels(arrays: dict[str, np.ndarray[Any, Any]], inputs: Container[str]) -> np.ndarray[Any, Any] | None:
    """Remove the classes that are expected from the arrays of a file.

    Args:
        arrays: The arrays, which the labels are removed from.
        inputs: The names of the inputs. A model may have an input of this name, which then takes the array.

    Returns:
        The labels, or None.
    """
    return None if "labels" in inputs else arrays.pop("labels", None)


def _write_npz(path: Path, results: dict[str, np.ndarray[Any, Any]]) -> None:
    import numpy as np

    not_tensors = [name for name, value in results.items() if not isinstance(value, np.ndarray)]
    if not_tensors:
        raise RunError(f"output {not_tensors[0]!r} is not a tensor, and an .npz file holds only these; omit --output")
    # An array of objects would be pickled, and reading a pickle can run code.
    texts = {name: array.astype(np.str_) for name, array in results.items() if array.dtype == object}
    changed = [name for name, array in texts.items() if array.tolist() != results[name].tolist()]
    if changed:
        raise RunError(f"output {changed[0]!r} holds values that an .npz file would change; omit --output")
    try:
        with atomic_write(path) as file:
            write_arrays(file, {**results, **texts}, is_compressed=True)
    except OSError as error:
        raise RunError(f"output file {str(path)!r} cannot be written: {error.strerror or error}") from error


def _accuracy(scores: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> float | None:
    """Return the share of rows whose highest score is that of their label; None without rows."""
    if labels.dtype.kind not in "iuf":
        raise RunError(f"labels are {labels.dtype}; expected the numbers of the classes, from 0")
    if scores.ndim != 2 or labels.shape != scores.shape[:1]:
        raise RunError(f"labels have shape {labels.shape} and scores {scores.shape}; expected (n,) and (n, classes)")
    return float((scores.argmax(axis=1) == labels).mean()) if len(labels) else None


def _check(
    model: Path, arrays: dict[str, Any], results: dict[str, Any], tolerance: Tolerance, *, float64: bool
) -> tuple[Comparison, str]:
    """Compare results with those of the unpartitioned model, run by onnxruntime if it is installed, else by numpy.

    In float64, numpy runs it.

    Returns:
        The comparison, and the backend of the reference.
    """
    from tvmtarget.building.compile_plan import build
    from tvmtarget.building.output_comparison import compare, halves_of_outputs
    from tvmtarget.ir.module import IRModule

    module = IRModule.from_onnx(model)
    tolerance = replace(tolerance, halves=halves_of_outputs(module))
    if float64:
        from tvmtarget.backends.numpy import outputs_in_float64

        wide = outputs_in_float64(module.to_onnx(), arrays)
        return compare(results, wide, tolerance), "numpy in float64"
    kind = "onnxruntime" if _is_installed("onnxruntime") else "numpy"
    # The model is built anew without partitioning, so that the reference shares no decision with the checked plan.
    expected = build(module, kind).run(arrays)
    return compare(results, expected, tolerance), kind


def _is_installed(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None


def _print(
    report: dict[str, Any], results: dict[str, Any], tuned: Sequence[Applied], comparison: Comparison | None
) -> None:
    from tvmtarget.autotune.log.applied import applied_lines

    for subgraph in report["subgraphs"]:
        typer.echo(
            f"@{subgraph['site'] or '.'} by {subgraph['backend']}: {counted(len(subgraph['ops']), 'op')} "
            f"in {subgraph['function']}"
        )
    for line in applied_lines(tuned):
        typer.echo(line)
    typer.echo(f"ran by {', '.join(report['backends'])}; {counted(len(report['copies']), 'copy')}")
    for name, array in results.items():
        # An output is an array, a sequence or a map.
        described = (
            f"{array.dtype}{list(array.shape)}"
            if hasattr(array, "dtype")
            else (f"{type(array).__name__} of {len(array)}")
        )
        typer.echo(f"output {name}: {described}")
    if report.get("accuracy") is not None:
        typer.echo(f"accuracy: {100 * report['accuracy']:.2f} %")
    if "profile" in report:
        _print_profile(report["profile"], report["subgraphs"])
    if comparison is None:
        return
    for output in comparison.outputs:
        if not output.agrees or output.nans or output.infinities or output.max_abs is None:
            typer.echo(f"compared {output}")
    worst = "none" if comparison.max_abs is None else f"{comparison.max_abs:.3g}"
    typer.echo(f"largest difference from the unpartitioned model, run by {report['reference']}: {worst}")


def _print_profile(profile: dict[str, Any], subgraphs: Sequence[dict[str, Any]]) -> None:
    typer.echo(f"a run takes {seconds_text(profile['seconds'])}, the median of {profile['runs']}")
    sites = {subgraph["function"]: subgraph["site"] or "." for subgraph in subgraphs}
    for part in profile["parts"]:
        if "call" in part:
            what = f"@{sites.get(part['function'], '.')} {part['call']}"
        else:
            what = f"copy {part['copy']} from {part['src']} to {part['dst']}"
        typer.echo(f"  {what}: {seconds_text(part['seconds'])}")
