"""`tvmtarget cache`: list and remove code in the compile cache."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tvmtarget.cli.options import Json, print_json
from tvmtarget.errors import FileError
from tvmtarget.human_units import bytes_text, counted

if TYPE_CHECKING:
    from tvmtarget.compile_cache import CacheEntry, CompileCache

__all__ = ["app"]

app = typer.Typer(help="List and remove native code in the compile cache.", no_args_is_help=True)


def _opened() -> CompileCache:
    from tvmtarget.compile_cache import CompileCache, default_folder

    folder = default_folder()
    if folder is None:
        raise FileError("there is no compile cache: TVMTARGET_CACHE is 'off', or there is no home folder")
    cache = CompileCache(folder)
    problem = cache.problem()
    if problem is not None:
        raise FileError(problem, path=str(folder))
    return cache


@app.command("path")
def path(as_json: Json = False) -> None:
    """Print the folder of the cache, whether it exists or not."""
    folder = str(_opened().folder)
    if as_json:
        print_json({"path": folder})
    else:
        typer.echo(folder)


@app.command("list")
def list_entries(as_json: Json = False) -> None:
    """List the entries, the one that was used last first, and the size of all."""
    cache = _opened()
    entries = cache.entries()
    total = sum(entry.nbytes for entry in entries)
    if as_json:
        shown = [_described(entry) for entry in entries]
        print_json({"path": str(cache.folder), "entries": shown, "bytes": total, "limit": cache.most})
        return
    for entry in entries:
        used = datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M")
        what = f"{entry.facts.get('function', '?')} for {entry.facts.get('target', '?')}" if entry.facts else "damaged"
        typer.echo(f"{used}  {bytes_text(entry.nbytes):>9}  {what}")
    size = f"{bytes_text(total)} of at most {bytes_text(cache.most)}"
    typer.echo(f"{counted(len(entries), 'entry', 'entries')}, {size} in {cache.folder}")


@app.command("prune")
def prune(
    most: Annotated[
        int | None,
        typer.Option(
            "--max-bytes",
            min=0,
            metavar="N",
            help="The size to shrink to; by default the limit of the cache.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Remove the entries that were not used longest, and what killed processes left."""
    cache = _opened()
    _remove(cache, cache.most if most is None else most, as_json=as_json)


@app.command("clear")
def clear(as_json: Json = False) -> None:
    """Remove all entries."""
    _remove(_opened(), 0, as_json=as_json)


def _remove(cache: CompileCache, most: int, *, as_json: bool) -> None:
    before = cache.entries()
    kept = cache.prune(most)
    count, removed = len(before) - len(cache.entries()), sum(entry.nbytes for entry in before) - kept
    if as_json:
        print_json({"path": str(cache.folder), "removed": count, "removed_bytes": removed, "bytes": kept})
    else:
        typer.echo(f"{counted(count, 'entry', 'entries')} removed, {bytes_text(removed)}; {bytes_text(kept)} left")
    if kept > most:
        raise FileError(
            f"entries in {str(cache.folder)!r} cannot be removed; it may be read-only", path=str(cache.folder)
        )


def _described(entry: CacheEntry) -> dict[str, object]:
    return {"file": entry.path.name, "bytes": entry.nbytes, "used": round(entry.used), "facts": dict(entry.facts)}
