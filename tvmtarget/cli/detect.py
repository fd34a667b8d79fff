"""`tvmtarget detect`: print this machine as a target, or why it does not match another target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tvmtarget.cli.options import Json, print_json
from tvmtarget.cli.targets import read_target
from tvmtarget.errors import TargetError, TargetFileError
from tvmtarget.files import atomic_write
from tvmtarget.untrusted import read_text

if TYPE_CHECKING:
    from tvmtarget.target.detection.machine import Machine

__all__ = ["detect"]


def detect(
    as_json: Json = False,
    why_not: Annotated[
        str | None,
        typer.Option(
            "--why-not", metavar="TARGET", help="Print whether this machine matches a tag or target, and why not."
        ),
    ] = None,
    capture: Annotated[
        Path | None, typer.Option("--capture", metavar="FILE", help="Write the facts read from this machine to a file.")
    ] = None,
    machine: Annotated[
        Path | None, typer.Option("--machine", metavar="FILE", help="Read a captured machine instead of this one.")
    ] = None,
) -> None:
    """Detect the hardware of this machine and print it as a target."""
    from tvmtarget.target.detection.detect import board_name
    from tvmtarget.target.detection.machine import Machine
    from tvmtarget.target.tree import Target

    facts = Machine.capture() if machine is None else _read(machine)
    if capture is not None:
        _write(capture, facts)
    found = Target.detect(facts)
    if why_not is not None:
        reason = found.why_not(read_target(why_not))
        if as_json:
            print_json(reason.to_json())
        else:
            typer.echo(str(reason))
        if not reason:  # UNKNOWN counts as no: scripts that test the exit code need a proven match
            raise typer.Exit(1)
        return
    if as_json:
        print_json(found.to_json())
        return
    typer.echo(str(found))
    if board_name(facts):
        typer.echo(f"board: {board_name(facts)}", err=True)


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
