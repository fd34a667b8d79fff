"""`tvmtarget log`: read, query, combine, check and repair tuning logs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from tvmtarget.cli.options import Json, UsageError, print_json
from tvmtarget.cli.targets import TargetText, read_target
from tvmtarget.errors import LogError, TvmTargetError, raise_all
from tvmtarget.files import has_file
from tvmtarget.human_units import counted
from tvmtarget.target.problems import known_word, shown
from tvmtarget.untrusted import parse_json

if TYPE_CHECKING:
    from tvmtarget.autotune.log.importers.import_common import Imported
    from tvmtarget.autotune.log.records import Candidate, Workload
    from tvmtarget.autotune.log.tuning_log import TuningLog
    from tvmtarget.target.tree import Target

__all__ = ["app", "read_log", "reject_memory"]

Log: TypeAlias = Annotated[
    str, typer.Argument(help="A tuning log: a .jsonl or .db file, or a URL.", show_default=False)
]
WorkloadText: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD",
        help="A workload: its key (w1:...) or the start of it, an ONNX file, or a JSON body.",
        show_default=False,
    ),
]

app = typer.Typer(help="Read, query, merge, import, check and repair tuning logs.", no_args_is_help=True)


def read_log(url: str, *, layers: Sequence[str] = (), new: bool = False) -> TuningLog:
    """Open a tuning log.

    Args:
        url: A file or URL; `-` reads the lines of a log from standard input.
        layers: Logs that are read after this one, and have to exist.
        new: Whether the log may be created; otherwise it has to exist.

    Returns:
        The log; use it in a `with` block to close it.

    Raises:
        LogError: A log does not exist or cannot be read.
        UsageError: The log is `memory:`.
    """
    from tvmtarget.autotune.log.store import path_of
    from tvmtarget.autotune.log.tuning_log import TuningLog

    reject_memory(url)
    # Opening a log can create it, and a mistyped name would then look like an empty log.
    for name in (*layers, *(() if new or url == "-" else (url,))):
        if (path := path_of(name)) is not None and not os.path.lexists(path):
            raise LogError(f"there is no log {name!r}")
    return TuningLog(url, layers=layers)


def reject_memory(url: str) -> None:
    """Reject the log that ends with the process, to which a command would write for nothing.

    Args:
        url: A file or URL.

    Raises:
        UsageError: It is `memory:`.
    """
    if url == "memory:":
        raise UsageError("'memory:' ends with this command, and all records with it; name a file, such as log.db")


@app.command("stats")
def stats(log: Log, as_json: Json = False) -> None:
    """Print the numbers of lines, trials, candidates, targets and workloads in a log."""
    with read_log(log) as opened:
        found = opened.stats()
    if as_json:
        print_json(found.to_json())
    else:
        typer.echo(str(found))


@app.command("lookup")
def lookup(
    log: Log,
    workload: WorkloadText,
    target: TargetText,
    layer: Annotated[
        list[str] | None, typer.Option("--layer", help="Another log to search after LOG; may be repeated.")
    ] = None,
    max_distance: Annotated[
        float | None,
        typer.Option(
            "--max-distance", help="The largest distance between the devices of a match; 8 by default.", metavar="D"
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Only match records measured with the installed versions.")
    ] = False,
    require: Annotated[
        str | None,
        typer.Option(
            "--require",
            metavar="TIER",
            help="Fail unless the match is of this tier or a better one: pin, exact, equal, near, workload-near.",
            show_default=False,
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            "--top", min=1, help="List the N fastest records of this target.", metavar="N", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the best record for a workload on a target, its tier, and why better tiers have none."""
    from tvmtarget.autotune.log.match import TIERS, Policy

    tier = None if require is None else known_word("--require", require, TIERS, UsageError)
    if top is not None and (strict or max_distance is not None):
        raise UsageError(f"--top lists all records of this target; omit {'--strict' if strict else '--max-distance'}")
    opened = read_log(log, layers=layer or ())
    policy = Policy(strict=strict) if max_distance is None else Policy(max_distance, strict)
    key, tree = _workload(opened, workload), read_target(target)
    if tier is not None:
        opened.lookup(key, tree, policy=policy).require(tier)
    if top is not None:
        matches = opened.top_k(key, tree, top)
        if as_json:
            print_json([match.to_json() for match in matches])
        else:
            typer.echo("\n".join(match.explain() for match in matches) or "no record")
        return
    match = opened.lookup(key, tree, policy=policy)
    # Records under other names matter only where the lookup itself finds none.
    renamed = list(opened.renamed(key, tree)) if match.tier == "default" else []
    if as_json:
        print_json(match.to_json() | {"renamed": [paths for _, paths in renamed]})
    else:
        typer.echo(match.explain())
        if match.tier == "default" and workload.endswith(".onnx"):
            # A build looks up the kernels, settings and placements of a plan, which are workloads of their own.
            typer.echo(f"  note: `tvmtarget explain {workload} --target ... --log {log}` prints what a build looks up")
        for source, paths in renamed:
            names = ", ".join(f"{old} is {new}" for old, new in paths.items() if old != new)
            typer.echo(f"  note: a build uses the records of {source}, where {names}")


@app.command("merge")
def merge(
    log: Log, others: Annotated[list[str], typer.Argument(help="Logs to merge into LOG.", show_default=False)]
) -> None:
    """Merge other logs into one. The result does not depend on the order."""
    # Opened before LOG is, so that a missing source is reported before LOG is created.
    sources = [_with_warnings(read_log(other)) for other in others]
    with read_log(log, new=True) as opened:
        typer.echo(counted(opened.merge(*sources), "new line"))


_MOST_REJECTED = 5  # lines of a file of another format that are printed


@app.command("import")
def import_(
    log: Log,
    sources: Annotated[
        list[Path], typer.Argument(help="AutoTVM or TopHub files, or MetaSchedule folders.", show_default=False)
    ],
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            help="A target of the records. TVM writes targets without caches and memories: its records are assigned "
            "to the target given here that TVM writes the same way. May be repeated.",
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail if a line is rejected.")] = False,
) -> None:
    """Import logs of other tools, and print each rejected line with the reason."""
    # Read before LOG is, so that an error in them creates no log.
    targets = [read_target(one) for one in target or ()]
    missing = [f"no file {str(source)!r}" for source in sources if not has_file(source)]
    raise_all(LogError, missing)
    accepted, rejected = 0, 0
    with read_log(log, new=True) as opened:
        for source in sources:
            outcome = _import(opened, source, targets)
            typer.echo(f"{source}: {outcome}")
            # Of a file of another format, every line is rejected: the first ones say enough.
            is_other = len(outcome.rejected) == outcome.read
            shown_lines = outcome.rejected[:_MOST_REJECTED] if is_other else outcome.rejected
            for line in shown_lines:
                typer.echo(f"warning: {source}: {line}", err=True)
            if len(shown_lines) < len(outcome.rejected):
                more = len(outcome.rejected) - len(shown_lines)
                typer.echo(f"warning: {source}: {counted(more, 'more line')} rejected", err=True)
            rejected += len(outcome.rejected)
            accepted += outcome.read - len(outcome.rejected)
    # A file of another format has every line rejected; an exit code of 0 would hide that from scripts.
    if rejected and not accepted:
        raise LogError("nothing was imported: every line was rejected")
    if strict and rejected:
        raise typer.Exit(1)


@app.command("export")
def export(
    log: Log,
    output: Annotated[
        Path,
        typer.Argument(
            help="A new .jsonl or .jsonl.gz file, '-' for standard output, or a folder.", show_default=False
        ),
    ],
    format_: Annotated[
        Literal["lines", "metaschedule"],
        typer.Option(
            "--format", help="Sorted lines of this library, or a folder with a MetaSchedule database per tuning key."
        ),
    ] = "lines",
    best: Annotated[
        int | None,
        typer.Option(
            "--best",
            min=1,
            metavar="N",
            help="Only the N fastest candidates of each workload and target; without it lines of all of them, or the "
            "fastest for metaschedule.",
            show_default=False,
        ),
    ] = None,
    family: Annotated[
        str | None,
        typer.Option(
            "--target-family",
            metavar="TARGET",
            help="Only records that lookups for this target may use.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Export a log as sorted lines, or as databases of TVM's MetaSchedule."""
    if format_ != "lines" and (family is not None or str(output) == "-"):
        option, written = ("--target-family", "all tuning keys") if family is not None else ("'-'", "folders")
        raise UsageError(f"{option} needs --format lines; --format metaschedule writes {written}")
    opened = _with_warnings(read_log(log))
    relative = None if family is None else read_target(family)
    if format_ == "lines" and str(output) == "-":
        for line in opened.lines(best=best, family=relative):
            typer.echo(line)
        return
    if format_ == "lines":
        typer.echo(f"{counted(opened.export(output, best=best, family=relative), 'line')} written to {output}")
        return
    from tvmtarget.autotune.log.importers.metaschedule import export_metaschedule, left_out

    for key, folder in export_metaschedule(opened, output, best=best or 1).items():
        typer.echo(f"{key}  {folder}")
    for reason, count in left_out(opened).items():
        typer.echo(f"not exported: {counted(count, 'trial')}: {reason}", err=True)


@app.command("verify")
def verify(log: Log, as_json: Json = False) -> None:
    """Check every line of a log.

    The exit code is 1 if a line is invalid, and 2 if the log cannot be read.
    """
    try:
        with read_log(log) as opened:
            problems = opened.verify()
    except LogError as error:
        for problem in error.problems:
            typer.echo(f"error: {problem}", err=True)
        raise typer.Exit(2) from error
    if as_json:
        print_json({"url": log, "problems": problems})
    else:
        typer.echo("\n".join(problems) or "no problems found")
    if problems:
        raise typer.Exit(1)


@app.command("repair")
def repair(log: Log) -> None:
    """Move the unreadable lines of a log to the file NAME.rejected beside it.

    A database that cannot be opened is replaced by a new one with all lines that can be recovered.
    """
    from tvmtarget.autotune.log.recover import is_damage, recover
    from tvmtarget.autotune.log.store import path_of

    try:
        with read_log(log) as opened:
            moved = opened.repair()
    except LogError as error:
        path = path_of(log)
        if path is None or not is_damage(error):
            raise
        count, damaged = recover(path)
        typer.echo(f"{error}\nrebuilt with {counted(count, 'recovered line')}; the damaged file is {damaged}")
    else:
        typer.echo(f"{counted(moved, 'line')} moved")


@app.command("retract")
def retract(
    log: Log,
    digest: Annotated[
        str, typer.Argument(help="The digest of a line (d1:...), or the start of it.", show_default=False)
    ],
    why: Annotated[str, typer.Option("--why", help="Why the line is wrong.", show_default=False)],
) -> None:
    """Mark a line as invalid, with a reason. The line stays in the log."""
    with read_log(log) as opened:
        typer.echo(f"{opened.retract(digest, why).of} retracted")


@app.command("pin")
def pin(
    log: Log,
    workload: WorkloadText,
    target: TargetText,
    candidate: Annotated[
        str,
        typer.Option(
            "--candidate", help='The candidate: JSON {"format": ..., "body": ...}, or the digest of a trial (d1:...).'
        ),
    ],
    why: Annotated[str, typer.Option("--why", help="Why this candidate is chosen.", show_default=False)],
) -> None:
    """Fix the candidate for a workload on a target; measurements do not change it."""
    with read_log(log) as opened:
        chosen = _candidate(opened, candidate)
        key, tree = _workload(opened, workload), read_target(target)
        pinned = opened.pin(key, tree, chosen, why)
        found = opened.lookup(key, tree).record
    # Other records can outrank the new pin, and scripts must not take that for success.
    if found is None or found.digest != pinned.digest:
        other = "nothing" if found is None else found.digest
        raise LogError(f"{pinned.digest} is written, but a lookup returns {other}; retract that, or pin again")
    typer.echo(f"{pinned.digest} pinned")


@app.command("compact")
def compact(
    log: Log,
    best: Annotated[
        int,
        typer.Option("--best", min=1, metavar="N", help="Keep the N fastest candidates of each workload and target."),
    ],
) -> None:
    """Remove the trials of all but the fastest candidates. No other command removes records."""
    with read_log(log) as opened:
        removed = opened.compact(best=best)
    for trial in removed:
        typer.echo(f"removed {trial.digest}  {trial.workload}  {trial.measured.status}")
    typer.echo(f"{counted(len(removed), 'trial')} removed")


@app.command("diff")
def diff(left: Log, right: Log, as_json: Json = False) -> None:
    """Print the differences between two logs, and between the candidates that they choose.

    The exit code is 1 if the logs differ.
    """
    with read_log(left) as first, read_log(right) as second:
        found = first.diff(second)
    if as_json:
        print_json(found.to_json())
    else:
        typer.echo(str(found))
    if found:
        raise typer.Exit(1)


def _with_warnings(log: TuningLog) -> TuningLog:
    """Return a log after printing a warning for each of its unreadable lines, which readers skip."""
    for line in log.problems():
        typer.echo(f"warning: {log.url}: {line}", err=True)
    return log


def _import(log: TuningLog, source: Path, targets: Sequence[Target]) -> Imported:
    if os.path.isdir(source):
        from tvmtarget.autotune.log.importers.metaschedule import import_metaschedule

        return import_metaschedule(log, source, targets=targets)
    from tvmtarget.autotune.log.importers.autotvm import import_autotvm

    return import_autotvm(log, source, targets=targets)


def _candidate(log: TuningLog, text: str) -> Candidate:
    """Parse the JSON of a candidate, or find the trial with a digest and return its candidate."""
    from tvmtarget.autotune.log.records import Candidate, Trial

    if text.startswith("{"):
        try:
            return Candidate(**parse_json(text, "it"))
        except (ValueError, TypeError, RecursionError, TvmTargetError) as error:
            raise LogError(f"{shown(text)} is not a candidate: {error}") from error
    found = [one for one in log if isinstance(one, Trial) and one.digest.startswith(text)]
    if len(found) != 1:
        what = "no trial" if not found else f"{len(found)} trials"
        raise LogError(f"{what} of the log with a digest that starts with {text!r}")
    return found[0].candidate


def _workload(log: TuningLog, text: str) -> Workload:
    """Return the workload of an ONNX file, of a JSON body, or of a key in the log."""
    from tvmtarget.autotune.log.records import Workload

    if text.endswith(".onnx"):
        from tvmtarget.autotune.log.keys import workload_of
        from tvmtarget.ir.module import IRModule

        return workload_of(IRModule.from_onnx(Path(text)).main)
    if text.startswith("{"):
        try:
            return Workload.of(parse_json(text, "it"))
        except (ValueError, RecursionError, TvmTargetError) as error:
            raise LogError(f"{shown(text)} is not the body of a workload: {error}") from error
    found = {one.key: one for one in log.workloads() if one.key.startswith(text)}
    if len(found) != 1:
        what = "no workload" if not found else f"{len(found)} workloads"
        raise LogError(f"{what} of the log with a key that starts with {text!r}; `tvmtarget log stats` counts them")
    return next(iter(found.values()))
