"""`tvmtarget compile`: compile a model for a target, or a saved plan, into one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tvmtarget.cli.option_groups import with_option_groups
from tvmtarget.cli.options import AllowInterpreter, Jobs, ModelOrPlan, NoCache, UsageError, check_folders
from tvmtarget.cli.plans import PlanOptions, needed_target, read_plan
from tvmtarget.cli.run import pop_labels, read_npz
from tvmtarget.cli.targets import OptionalTarget, TargetEdits, read_target
from tvmtarget.errors import TextError
from tvmtarget.human_units import counted

if TYPE_CHECKING:
    from tvmtarget.building.self_test import SelfTest
    from tvmtarget.ir.module import IRModule
    from tvmtarget.target.tree import Target

__all__ = ["compile_model"]


@with_option_groups
def compile_model(
    context: typer.Context,
    model: ModelOrPlan,
    *,
    target: OptionalTarget = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.", show_default=False)],
    edits: TargetEdits,
    options: PlanOptions,
    allow_interpreter: AllowInterpreter = False,
    no_cache: NoCache = False,
    jobs: Jobs = None,
    self_test: Annotated[
        bool,
        typer.Option(
            "--self-test",
            help="Store random inputs and the outputs of the reference evaluator, for `tvmtarget run --self-test`.",
        ),
    ] = False,
    self_test_input: Annotated[
        Path | None,
        typer.Option("--self-test-input", help="An .npz file with the inputs of the self-test.", show_default=False),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export",
            help="Also write what runs without this library: a folder, or a .c, .so or .tar file (docs/executors.md).",
            show_default=False,
        ),
    ] = None,
    export_system: Annotated[
        str,
        typer.Option(
            "--export-system", help="The path of the system to export; the root by default.", show_default=False
        ),
    ] = "",
) -> None:
    """Compile a model for a target into one file, for `tvmtarget run`.

    A plan that `tvmtarget explain --save` wrote is compiled as it is.
    """
    from tvmtarget.artifact import is_artifact
    from tvmtarget.autotune.log.applied import applied_lines

    if export_system and export is None:
        raise UsageError("--export-system has no effect without --export; add --export PATH")
    check_folders(output)
    tree: Target | None = None
    if is_artifact(model):
        # A log may choose the kernels of a plan.
        changed = target is not None or edits or context.args or options.given - {"log", "near"}
        plan = read_plan(model, is_changed=bool(changed))
        module = plan.request.module
    else:
        plan, tree = None, read_target(needed_target(model, target), edits, context.args)
        module = options.read(model)
    exe = options.build(
        plan or module,
        tree,
        name=model.stem,
        allow_interpreter=allow_interpreter,
        cache=not no_cache,
        jobs=jobs,
        quiet=False,
    )
    if self_test or self_test_input is not None:
        exe.self_test = _self_test(module, self_test_input)
    # Before the program is saved: an export that is refused leaves an earlier program as it was.
    if export is not None:
        exe.export(export, export_system)
    exe.save(output)
    for note in exe.notes:
        typer.echo(f"note: {note}", err=True)
    for line in applied_lines(exe.tuned):
        typer.echo(line, err=True)
    backends = ", ".join(sorted(set(exe.backends.values()))) or "no backend"
    typer.echo(f"{output}: {counted(len(exe.backends), 'function')} by {backends}")
    if export is not None:
        typer.echo(f"{export}: exported, to run without this library")


def _self_test(module: IRModule, inputs: Path | None) -> SelfTest:
    """Return inputs for a program, and the outputs of the reference evaluator for them."""
    from tvmtarget.autotune.search.timing import random_inputs
    from tvmtarget.building.compile_plan import build_plan
    from tvmtarget.building.output_comparison import halves_of_outputs
    from tvmtarget.building.self_test import SelfTest
    from tvmtarget.partition.plan import decompose

    plan = decompose(module, "numpy")
    if inputs is not None:
        arrays = read_npz(inputs)
        pop_labels(arrays, [parameter.name for parameter in module.main.params])
    elif (made := random_inputs(plan)) is not None:
        arrays = dict(made)
    else:
        raise TextError("an input of the model is no tensor of numbers; pass inputs by --self-test-input")
    return SelfTest(arrays, build_plan(plan).run(arrays), "numpy", halves_of_outputs(module))
