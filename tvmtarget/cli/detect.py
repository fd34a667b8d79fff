"""`tvmtarget detect`: what this machine is, or why it is not another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tvmtarget.cli.options import Json, print_json
from tvmtarget.errors import TargetError, TargetFileError
from tvmtarget.files import atomic_write
from tvmtarget.untrusted import read_text

if TYPE_CHECKING:
    from tvmtarget.target.constraints.reasons import Reason
    from tvmtarget.target.detection.machine import Machine

__all__ = ["detect"]


def detect(
    as_json: Json = False,
    wanted: Annotated[
        str | None,
        typer.Option(
            "--why-not", metavar="TARGET", help="Say why this machine is not that tag or target, or that it is."
        ),
    ] = None,
    capture: Annotated[
        Path | None, typer.Option("--capture", metavar="FILE", help="Write what was read of this machine to a file.")
    ] = None,
    machine: Annotated[
        Path | None, typer.Option("--machine", metavar="FILE", help="Read a captured machine instead of this one.")
    ] = None,
) -> None:
    """Measure this machine and print it as a target."""
    from tvmtarget.target.detection.detect import board
    from tvmtarget.target.detection.machine import Machine
    from tvmtarget.target.tree import Target

    read = Machine.capture() if machine is None else _read(machine)
    if capture is not None:
        _write(capture, read)
    found = Target.detect(read)
    if wanted is not None:
        _tell(found.why_not(wanted), as_json=as_json)
        return
    if as_json:
        print_json(found.to_json())
        return
    typer.echo(str(found))
    if board(read):
        typer.echo(f"board: {board(read)}", err=True)


def _tell(reason: Reason, *, as_json: bool) -> None:
    """Print an answer; only a yes is exit code 0."""
    if as_json:
        print_json(reason.to_json())
    else:
        typer.echo(str(reason))
    if not reason:
        raise typer.Exit(1)


def _read(path: Path) -> Machine:
    from tvmtarget.target.detection.machine import Machine

    text = read_text(path, "captured machine", error=TargetFileError)
    try:
        return Machine.from_json(text)
    except TargetError as error:
        problems = (f"{problem} (in {str(path)!r})" for problem in error.problems)
        raise TargetFileError(*problems, path=str(path)) from error


def _write(path: Path, machine: Machine) -> None:
    try:
        with atomic_write(path) as file:
            file.write(machine.to_json().encode())
    except OSError as error:
        raise TargetError(f"capture file {str(path)!r} cannot be written: {error.strerror}") from error
