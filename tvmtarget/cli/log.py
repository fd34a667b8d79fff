"""`tvmtarget log`: what tuning logs hold, what they answer, and how they are put together and mended."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from tvmtarget.cli.options import Json, print_json
from tvmtarget.cli.targets import TargetText, read_target
from tvmtarget.errors import LogError, TvmTargetError
from tvmtarget.target.problems import shown
from tvmtarget.untrusted import parse_json

if TYPE_CHECKING:
    from tvmtarget.autotune.log.importers.import_common import Imported
    from tvmtarget.autotune.log.match import Tier
    from tvmtarget.autotune.log.records import Candidate, Workload
    from tvmtarget.autotune.log.tuning_log import TuningLog
    from tvmtarget.target.tree import Target

__all__ = ["app", "read_log"]

Log: TypeAlias = Annotated[
    str, typer.Argument(help="NAME.jsonl, NAME.db, or another URL of a log.", show_default=False)
]

app = typer.Typer(help="Read, look up, merge, import, check and mend tuning logs.", no_args_is_help=True)


def read_log(url: str, *, layers: Sequence[str] = (), new: bool = False) -> TuningLog:
    """Open a log; one that is only read has to be there, and may be lines from standard input, `-`."""
    from tvmtarget.autotune.log.store import path_of
    from tvmtarget.autotune.log.tuning_log import TuningLog

    if url == "-" and not new:
        return _from_stdin(layers)
    for name in (*layers, *(() if new else (url,))):
        if (path := path_of(name)) is not None and not os.path.lexists(path):
            raise LogError(f"there is no log {name!r}")
    return TuningLog(url, layers=layers)


def _from_stdin(layers: Sequence[str]) -> TuningLog:
    from tvmtarget.autotune.log.tuning_log import TuningLog

    with NamedTemporaryFile(suffix=".jsonl") as file:  # an open log needs no name
        shutil.copyfileobj(sys.stdin.buffer, file)
        file.flush()
        return TuningLog(file.name, layers=layers)


@app.command("stats")
def stats(log: Log, as_json: Json = False) -> None:
    """Count what a log holds."""
    found = read_log(log).stats()
    if as_json:
        print_json(found.to_json())
    else:
        typer.echo(str(found))


@app.command("lookup")
def lookup(
    log: Log,
    workload: Annotated[
        str, typer.Argument(help="A key (w1:...) or how it begins, an ONNX file, or a JSON body.", show_default=False)
    ],
    target: TargetText,
    layer: Annotated[list[str] | None, typer.Option("--layer", help="A log to look into as well.")] = None,
    max_distance: Annotated[float, typer.Option("--max-distance", help="How far a record may be carried.")] = 8.0,
    strict: Annotated[bool, typer.Option("--strict", help="Only what was measured with these versions.")] = False,
    require: Annotated[str | None, typer.Option("--require", help="Fail beyond this tier.", show_default=False)] = None,
    top: Annotated[
        int | None, typer.Option("--top", min=1, help="List so many of the best measured here.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what a log knows for a workload on a target, from which tier, and why nothing nearer."""
    from tvmtarget.autotune.log.match import Policy

    opened = read_log(log, layers=layer or ())
    policy = Policy(max_distance=max_distance, strict=strict)
    asked, tree = _workload(opened, workload), read_target(target)
    if require is not None:
        opened.lookup(asked, tree, policy=policy).require(_tier(require))
    if top is not None:
        matches = opened.top_k(asked, tree, top)
        if as_json:
            print_json([match.to_json() for match in matches])
        else:
            typer.echo("\n".join(match.explain() for match in matches) or "no record")
        return
    match = opened.lookup(asked, tree, policy=policy)
    renamed = list(opened.renamed(asked, tree)) if match.tier == "default" else []
    if as_json:
        print_json(match.to_json() | {"renamed": [paths for _, paths in renamed]})
    else:
        typer.echo(match.explain())
        for source, paths in renamed:
            names = ", ".join(f"{old} is {new}" for old, new in paths.items() if old != new)
            typer.echo(f"  note: builds take what was measured on {source}, where {names}")


@app.command("merge")
def merge(log: Log, others: Annotated[list[str], typer.Argument(help="Logs to take in.", show_default=False)]) -> None:
    """Take the lines of other logs into one; in which order does not matter."""
    sources = [_with_warnings(read_log(other)) for other in others]
    with read_log(log, new=True) as opened:
        typer.echo(f"{opened.merge(*sources)} lines new")


@app.command("import")
def import_(
    log: Log,
    sources: Annotated[
        list[Path], typer.Argument(help="Files of AutoTVM or TopHub, or folders of MetaSchedule.", show_default=False)
    ],
    target: Annotated[
        list[str] | None,
        typer.Option("--target", help="What was measured on this as TVM writes it, without caches, is of this."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail if a line is rejected.")] = False,
) -> None:
    """Take in logs of other tools; every line that is rejected is told with its reason."""
    taken, rejected, targets = 0, 0, [read_target(one) for one in target or ()]
    with read_log(log, new=True) as opened:
        for source in sources:
            outcome = _import(opened, source, targets)
            typer.echo(f"{source}: {outcome}")
            for line in outcome.rejected:
                typer.echo(f"warning: {source}: {line}", err=True)
            rejected += len(outcome.rejected)
            taken += outcome.read - len(outcome.rejected)
    if rejected and not taken:
        raise LogError("nothing was taken in: every line was rejected")
    if strict and rejected:
        raise typer.Exit(1)


@app.command("export")
def export(
    log: Log,
    output: Annotated[Path, typer.Argument(help="A new .jsonl or .jsonl.gz, '-', or a folder.", show_default=False)],
    format_: Annotated[
        Literal["lines", "metaschedule"],
        typer.Option("--format", help="Our lines, sorted; or a folder with a database of TVM for each tuning key."),
    ] = "lines",
    best: Annotated[
        int | None,
        typer.Option("--best", min=1, help="Only so many candidates for each workload and target.", show_default=False),
    ] = None,
    family: Annotated[
        str | None,
        typer.Option("--target-family", help="Only what may be carried over to this target.", show_default=False),
    ] = None,
) -> None:
    """Write a log to a file of lines that can be compared and mailed, or for TVM."""
    opened = _with_warnings(read_log(log))
    relative = None if family is None else read_target(family)
    if format_ == "lines" and str(output) == "-":
        for line in opened.lines(best=best, family=relative):
            typer.echo(line)
        return
    if format_ == "lines":
        typer.echo(f"{opened.export(output, best=best, family=relative)} lines written to {output}")
        return
    if relative is not None:
        raise LogError("--target-family is for lines; a folder for TVM has one database for each tuning key anyway")
    from tvmtarget.autotune.log.importers.metaschedule import export_metaschedule, left_out

    for key, folder in export_metaschedule(opened, output, best=best or 1).items():
        typer.echo(f"{key}  {folder}")
    for reason, count in left_out(opened).items():
        typer.echo(f"left out: {count} trials: {reason}", err=True)


@app.command("verify")
def verify(log: Log) -> None:
    """Read everything in a log again; exit code 1 if a line is bad, 2 if the log cannot be read."""
    try:
        problems = read_log(log).verify()
    except LogError as error:
        for problem in error.problems:
            typer.echo(f"error: {problem}", err=True)
        raise typer.Exit(2) from error
    for problem in problems:
        typer.echo(problem)
    if problems:
        raise typer.Exit(1)
    typer.echo("nothing wrong")


@app.command("repair")
def repair(log: Log) -> None:
    """Move the lines that cannot be read to NAME.rejected, beside the log.

    Of a database that cannot be opened any more a new one is made of the whole lines that are in it.
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
        count, aside = recover(path)
        typer.echo(f"{error}\nmade anew of {count} whole lines; what was there is {aside}")
    else:
        typer.echo(f"{moved} lines moved")


@app.command("retract")
def retract(
    log: Log,
    digest: Annotated[str, typer.Argument(help="The digest of a line (d1:...), or how it begins.", show_default=False)],
    why: Annotated[str, typer.Option("--why", help="What is wrong with it.", show_default=False)],
) -> None:
    """Say that a line no longer counts; it stays, and so does the reason."""
    typer.echo(f"{read_log(log).retract(digest, why).of} retracted")


@app.command("pin")
def pin(
    log: Log,
    workload: Annotated[
        str, typer.Argument(help="A key (w1:...) or how it begins, an ONNX file, or a JSON body.", show_default=False)
    ],
    target: TargetText,
    candidate: Annotated[
        str, typer.Option("--candidate", help='{"format": ..., "body": ...}, or the digest of a trial (d1:...).')
    ],
    why: Annotated[str, typer.Option("--why", help="Why this one.", show_default=False)],
) -> None:
    """Choose a candidate for a workload on a target, whatever was or will be measured."""
    opened = read_log(log)
    chosen = _candidate(opened, candidate)
    asked, tree = _workload(opened, workload), read_target(target)
    pinned = opened.pin(asked, tree, chosen, why)
    found = opened.lookup(asked, tree).record
    if found is None or found.digest != pinned.digest:
        other = "nothing" if found is None else found.digest
        raise LogError(f"{pinned.digest} is written, but a lookup finds {other}; retract that, or pin again")
    typer.echo(f"{pinned.digest} pinned")


@app.command("compact")
def compact(
    log: Log,
    best: Annotated[int, typer.Option("--best", min=1, help="Candidates to keep for each workload and target.")],
) -> None:
    """Drop the trials of all but the best candidates; the only command that takes records out of a log."""
    for trial in (dropped := read_log(log).compact(best=best)):
        typer.echo(f"dropped {trial.digest}  {trial.workload}  {trial.measured.status}")
    typer.echo(f"{len(dropped)} trials dropped")


@app.command("diff")
def diff(left: Log, right: Log) -> None:
    """Say how two logs differ, and where they would choose differently; exit code 1 if they do."""
    found = read_log(left).diff(read_log(right))
    typer.echo(str(found))
    if found:
        raise typer.Exit(1)


def _with_warnings(log: TuningLog) -> TuningLog:
    """Return a log; the lines that cannot be read, and are left out of what is made of it, are told."""
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
    """Read a candidate: its JSON, or the trial of the log that tried it."""
    from tvmtarget.autotune.log.records import Candidate, Trial

    if text.startswith("{"):
        try:
            return Candidate(**parse_json(text, "it"))
        except (ValueError, TypeError, RecursionError, TvmTargetError) as error:
            raise LogError(f"{shown(text)} is no candidate: {error}") from error
    found = [one for one in log if isinstance(one, Trial) and one.digest.startswith(text)]
    if len(found) != 1:
        what = "no trial" if not found else f"{len(found)} trials"
        raise LogError(f"{what} of the log with a digest that begins with {text!r}")
    return found[0].candidate


def _tier(text: str) -> Tier:
    from tvmtarget.autotune.log.match import TIERS
    from tvmtarget.errors import did_you_mean

    found = next((tier for tier in TIERS if tier == text), None)
    if found is None:
        raise LogError(f"unknown tier {text!r}{did_you_mean(text, TIERS, listing='there are')}")
    return found


def _workload(log: TuningLog, text: str) -> Workload:
    """Read a workload: a model, a body, or a key of the log."""
    from tvmtarget.autotune.log.records import Workload

    if text.endswith(".onnx"):
        from tvmtarget.autotune.log.keys import workload_of
        from tvmtarget.ir.module import IRModule

        return workload_of(IRModule.from_onnx(Path(text)).main)
    if text.startswith("{"):
        try:
            return Workload.of(parse_json(text, "it"))
        except (ValueError, RecursionError, TvmTargetError) as error:
            raise LogError(f"{shown(text)} is no body of a workload: {error}") from error
    found = {one.key: one for one in log.workloads() if one.key.startswith(text)}
    if len(found) != 1:
        what = "no workload" if not found else f"{len(found)} workloads"
        raise LogError(f"{what} of the log with a key that begins with {text!r}; `tvmtarget log stats` counts them")
    return next(iter(found.values()))
