"""`tvmtarget run`: run a model or a compiled program on inputs from a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvmtarget.cli.completion import complete_target
from tvmtarget.cli.groups import with_groups
from tvmtarget.cli.options import AllowInterpreter, Json, print_json
from tvmtarget.cli.plans import PlanOptions
from tvmtarget.cli.targets import Changes, read_target
from tvmtarget.errors import ArtifactError, FileError, RunError, TextError
from tvmtarget.files import atomic_write
from tvmtarget.untrusted import open_regular, read_arrays

if TYPE_CHECKING:
    import numpy as np

    from tvmtarget.autotune.log.applied import Applied
    from tvmtarget.building.output_comparison import Comparison
    from tvmtarget.executors.graph import Event
    from tvmtarget.target.tree import Target

__all__ = ["run"]


@with_groups
def run(
    context: typer.Context,
    program: Annotated[Path, typer.Argument(help="An ONNX file, or a file that compile wrote.", show_default=False)],
    inputs: Annotated[
        Path, typer.Option("--input", "-i", help="Inputs by name, and labels: an .npz file.", show_default=False)
    ],
    changes: Changes,
    asked: PlanOptions,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            help="What to run a model on: a tag, a text, JSON, or native.",
            show_default=False,
            autocompletion=complete_target,
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Compare with the undivided model; exit code 1 if apart.")] = (
        False
    ),
    rtol: Annotated[
        float | None,
        typer.Option(
            "--rtol", min=0, help="With --check: relative tolerance; by type unless given.", show_default=False
        ),
    ] = None,
    atol: Annotated[
        float | None,
        typer.Option(
            "--atol", min=0, help="With --check: absolute tolerance; by type unless given.", show_default=False
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the outputs to an .npz file.", show_default=False)
    ] = None,
    as_json: Json = False,
    allow_interpreter: AllowInterpreter = False,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Let whoever wrote a compiled program run code as you: use its native code."),
    ] = False,
    scheduler: Annotated[
        str | None,
        typer.Option("--scheduler", help="The Dask scheduler to run on: tls://HOST:PORT.", show_default=False),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Use a scheduler without TLS: whoever reaches it may run code as you.")
    ] = False,
) -> None:
    """Run a model on a target, or a compiled program, and say what ran where."""
    from tvmtarget.artifact import is_artifact

    if (rtol is not None or atol is not None) and not check:
        raise TextError("--rtol and --atol are for comparing; they need --check")
    arrays = _read_npz(inputs)
    if is_artifact(program):
        if (
            target is not None
            or changes
            or context.args
            or asked
            or asked.where
            or asked.log
            or check
            or allow_interpreter
        ):
            options = (
                "--target, what changes it, what says how a program is divided, --log, --check and --allow-interpreter"
            )
            raise ArtifactError(f"{str(program)!r} is compiled already; {options} go with a model")
        from tvmtarget.building.executable import load

        exe = load(program, trust=trust, scheduler=scheduler, insecure=insecure)
    else:
        if target is None:
            raise TextError("--target is missing; a model runs on a target, such as --target llvm")
        tree = _on(scheduler, read_target(target, changes, context.args), insecure=insecure)
        exe = asked.build(program, tree, allow_interpreter=allow_interpreter, quiet=as_json)
    labels = None if "labels" in exe.inputs else arrays.pop("labels", None)
    from tvmtarget.executors.graph import CopyEvent

    events: list[Event] = []
    results = exe.run(arrays, record=events.append)
    report = {"target": exe.target.tag or str(exe.target), "notes": list(exe.notes), **exe.report()}
    report["copies"] = [
        {"value": event.value, "src": event.src, "dst": event.dst, "bytes": event.nbytes}
        for event in events
        if isinstance(event, CopyEvent)
    ]
    if labels is not None:
        report["accuracy"] = _accuracy(next(iter(results.values())), labels)
    comparison = None
    if check:
        comparison, report["reference"] = _check(program, arrays, results, rtol, atol)
        report["max_abs_error"] = comparison.max_abs
        report["check"] = comparison.to_json()
    if output is not None:
        _write_npz(output, results)
    for note in exe.notes:
        typer.echo(f"note: {note}", err=True)
    if as_json:
        print_json(report)
    else:
        _print(report, results, exe.tuned, comparison)
    if comparison is not None and not comparison.agrees:
        raise RunError(*(f"differs from the undivided model: {problem}" for problem in comparison.problems))


def _on(scheduler: str | None, target: Target, *, insecure: bool) -> Target:
    """Return a target whose runtime is connected to a scheduler, if one is named."""
    if scheduler is None:
        return target
    if target.runtime is None or target.runtime.kind != "dask":
        raise TextError(f"--scheduler {scheduler} goes with --runtime dask")
    from tvmtarget.target.node import Runtime

    return target.replace(runtime=Runtime("dask", {**target.runtime.attrs, "address": scheduler, "insecure": insecure}))


def _read_npz(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    with open_regular(path, "input file", most="artifact-bytes", error=RunError) as stream:
        if stream.read(6) == b"\x93NUMPY":
            raise RunError(f"input file {str(path)!r} holds one array without a name; write it with numpy.savez")
        try:
            return read_arrays(stream, f"input file {str(path)!r}")
        except FileError as error:
            raise RunError(f"{error}; write one with numpy.savez({str(path)!r}, name=array)") from error


def _write_npz(path: Path, results: dict[str, np.ndarray[Any, Any]]) -> None:
    import numpy as np

    others = [name for name, value in results.items() if not isinstance(value, np.ndarray)]
    if others:
        raise RunError(f"output {others[0]!r} is no tensor, which an .npz file cannot hold; leave out --output")
    try:
        with atomic_write(path) as file:
            np.savez_compressed(file, **results)  # type: ignore[arg-type]
    except OSError as error:
        raise RunError(f"output file {str(path)!r} cannot be written: {error.strerror or error}") from error


def _accuracy(scores: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> float:
    if scores.ndim != 2 or labels.shape != scores.shape[:1]:
        raise RunError(
            f"labels have shape {labels.shape}, and scores {scores.shape}; they should be (n,) and (n, classes)"
        )
    return float((scores.argmax(axis=1) == labels).mean()) if len(labels) else float("nan")


def _check(
    model: Path, arrays: dict[str, Any], results: dict[str, Any], rtol: float | None, atol: float | None
) -> tuple[Comparison, str]:
    """Run the undivided model, by onnxruntime if it is there, and compare the results; return who ran it, too."""
    from tvmtarget.building.compile_plan import build
    from tvmtarget.building.output_comparison import Tolerance, compare
    from tvmtarget.ir.module import IRModule

    kind = "onnxruntime" if _is_installed("onnxruntime") else "numpy"
    expected = build(IRModule.from_onnx(model), kind).run(arrays)
    return compare(results, expected, Tolerance(rtol, atol)), kind


def _is_installed(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None


def _print(
    report: dict[str, Any], results: dict[str, Any], tuned: Sequence[Applied], comparison: Comparison | None
) -> None:
    for subgraph in report["subgraphs"]:
        typer.echo(
            f"@{subgraph['site'] or '.'} by {subgraph['backend']}: {len(subgraph['ops'])} ops in {subgraph['function']}"
        )
    for applied in tuned:
        typer.echo(f"tuned: {applied}")
    typer.echo(f"ran by {', '.join(report['backends'])}; {len(report['copies'])} copies")
    for name, array in results.items():
        typer.echo(f"output {name}: {_described(array)}")
    if "accuracy" in report:
        typer.echo(f"accuracy: {100 * report['accuracy']:.2f} %")
    if comparison is None:
        return
    for output in comparison.outputs:
        if not output.agrees or output.nans or output.infinities or output.max_abs is None:
            typer.echo(f"compared {output}")
    worst = "none" if comparison.max_abs is None else f"{comparison.max_abs:.3g}"
    typer.echo(f"largest difference from the undivided model, by {report['reference']}: {worst}")


def _described(value: Any) -> str:  # noqa: ANN401 - an array, a sequence or a map
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "dtype") else f"{type(value).__name__} of {len(value)}"
