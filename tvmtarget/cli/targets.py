"""What commands take as a target: a text, tags laid over it, and values set or taken back, in this order.

tvmc's spellings are read too: `--target-llvm-mcpu=...` sets an attribute of every llvm in the tree,
`--executor aot --executor-aot-unpacked-api=1` and `--runtime crt` choose executor and runtime.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tvmtarget.cli.completion import complete_target
from tvmtarget.errors import TargetFileError, TextError, TvmTargetError, UnknownNameError, did_you_mean, raise_all
from tvmtarget.target.attributes import Word
from tvmtarget.untrusted import parse_json, read_text

if TYPE_CHECKING:
    from tvmtarget.target.kinds import Role
    from tvmtarget.target.tree import Target

__all__ = ["EXTRA", "Changes", "OwnTarget", "TargetArgument", "TargetText", "read_target"]

# Commands that take tvmc's options leave the words they do not know to `read_target`.
EXTRA = {"allow_extra_args": True, "ignore_unknown_options": True}

TargetArgument: TypeAlias = Annotated[
    str,
    typer.Argument(help="A tag, a text, JSON, TOML, or native.", show_default=False, autocompletion=complete_target),
]
_TARGET = typer.Option(
    "--target",
    "-t",
    help="What to run on: a tag (aws/c5), a text, JSON, or native.",
    show_default=False,
    autocompletion=complete_target,
)
TargetText: TypeAlias = Annotated[str, _TARGET]
OwnTarget: TypeAlias = Annotated[str | None, _TARGET]
With: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--with", help="Lay a tag or a text over the target.", autocompletion=complete_target),
]
Set: TypeAlias = Annotated[
    list[str] | None, typer.Option("--set", help="PATH=VALUE, as cpu/num-cores=8; +FEATURE or PATH/+FEATURE.")
]
Unset: TypeAlias = Annotated[list[str] | None, typer.Option("--unset", help="A path whose value is taken back.")]
Executor: TypeAlias = Annotated[str | None, typer.Option("--executor", help="graph, aot or vm.", show_default=False)]
Runtime: TypeAlias = Annotated[
    str | None, typer.Option("--runtime", help="python, processes, dask, cpp or crt.", show_default=False)
]


def _configure(context: typer.Context, name: str | None) -> str | None:
    """Take what a configuration file says for what the command line does not say; both count as given."""
    if name is None or context.resilient_parsing:
        return name
    from tvmtarget.tags.configurations import configuration_of, split_configuration

    target, executor, runtime, options = split_configuration(configuration_of(name))
    parameters = {flag: one.name for one in context.command.params for flag in one.opts if one.name != "config"}
    values: dict[str, object] = {}
    problems: list[str] = []
    for option, value in options.items():
        flag = f"--{option.replace('_', '-')}"
        if flag in parameters and not isinstance(value, dict | list):
            values[str(parameters[flag])] = value
        elif flag in _INSTEAD:
            option = f"{option}: {', '.join(value)}" if isinstance(value, dict) else option
            problems.append(
                f"{option!r} of configuration {name!r} is an option of tvmc that is not here; {_INSTEAD[flag]}"
            )
        else:
            tail = did_you_mean(flag, [one for one in parameters if one.startswith("--")])
            problems.append(f"{option!r} of configuration {name!r} is no option of this command{tail}")
    raise_all(TextError, problems)
    for part, said in (("target", target), ("executor", executor), ("runtime", runtime)):
        values |= {} if said is None else {part: json.dumps(said.to_json())}
    context.default_map = {**(context.default_map or {}), **values}
    return name


Config: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--config",
        help="A JSON file, or its name, with targets, executor, runtime and options, which other options override.",
        show_default=False,
        is_eager=True,
        callback=_configure,
    ),
]


@dataclass(frozen=True)
class Changes:
    """The options that change the target of a command line, in the order in which that is done."""

    overlays: With = None
    executor: Executor = None
    runtime: Runtime = None
    values: Set = None
    unset: Unset = None
    config: Config = None

    def __bool__(self) -> bool:
        return any(vars(self).values())


def read_target(text: str, changes: Changes | None = None, extra: Iterable[str] = ()) -> Target:
    """Read a target; `native` is this machine, measured at once, so that the word is nowhere in what is written.

    A name that ends in .json or .toml is a file that holds a target, if there is one. `extra` are options in tvmc's
    spelling, which are read after executor and runtime.
    """
    from tvmtarget.target.tree import Target

    changes = changes or Changes()
    if changes.config is not None and text.startswith("--"):  # tvmc's option stands where a positional target would
        text, extra = _configured_target(changes.config), [text, *extra]

    if text.endswith((".json", ".toml")) and Path(text).exists():
        tree = _read_file(text)
    else:
        tree = Target.detect() if text == "native" else Target.parse(text)
    for overlay in changes.overlays or ():
        tree = tree.merge(Target.parse(overlay))
    for role, kind in (("executor", changes.executor), ("runtime", changes.runtime)):
        tree = tree if kind is None else tree.override({role: _flat(role, kind)})
    for path, value in _of_tvmc(tree, extra):
        tree = tree.override({path: value})
    for change in changes.values or ():
        tree = tree.override(dict([_change(change)]))
    for path in changes.unset or ():
        tree = tree.unset(path)
    return tree


def _configured_target(name: str) -> str:
    from tvmtarget.tags.configurations import configuration_of, split_configuration

    target = split_configuration(configuration_of(name))[0]
    if target is None:
        raise TextError(f"configuration {name!r} has no 'targets', and no target is given")
    return json.dumps(target.to_json())


def _read_file(path: str) -> Target:
    from tvmtarget.target.tree import Target

    text = read_text(path, "target file", error=TargetFileError)
    try:
        return Target.parse(text)
    except TvmTargetError as error:
        problems = (f"{problem} (in target file {path!r})" for problem in error.problems)
        column = error.column if isinstance(error, TextError) else None
        raise TargetFileError(*problems, path=path, offset=column) from error


def _flat(role: str, text: str) -> object:
    """Return an executor or runtime as flat JSON, or its kind."""
    return parse_json(text, f"--{role}", error=TextError) if text.lstrip().startswith("{") else text


def _change(text: str) -> tuple[str, object]:
    """Split PATH=VALUE; a value is read as in a target's text, a feature as `+name` or `-name` after the path."""
    above, _, last = text.rpartition("/")
    if last[:1] in ("+", "-") and "=" not in last:
        return f"{above}/+".lstrip("/"), [last]
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise TextError(f"--set {text!r} is not PATH=VALUE, such as cpu/num-cores=8, nor a feature, such as cpu/+avx2")
    return path.strip(), Word(value.strip())


# Options of tvmc (python/tvm/driver/tvmc/{compiler,autotuner,runner}.py at v0.18.0) that are written otherwise here.
_INSTEAD = {
    **dict.fromkeys(("--opt-level", "-O"), "write --target-llvm-opt-level=3"),
    **dict.fromkeys(("--pass-config", "--disabled-pass"), "passes of TVM cannot be configured"),
    **dict.fromkeys(("--output-format", "-f"), "the runtime decides what is written: --runtime crt"),
    **dict.fromkeys(("--cross-compiler", "--cross-compiler-options"), "write --target-llvm-mtriple=aarch64-linux-gnu"),
    **dict.fromkeys(("--desired-layout", "--desired-layout-ops"), "code generators choose layouts"),
    **dict.fromkeys(("--dump-code", "--dump-offloads"), "`tvmtarget explain` says what runs where"),
    "--input-shapes": "shapes stand in the model",
    "--model-format": "models are ONNX files",
    "--target-host": "write it behind the device, as in --target 'cuda, llvm'",
    "--tuning-records": "write --log FILE; `tvmtarget log import` reads records of TVM",
    "--workspace-pools": "write memories of the target",
    "--timeout": "write --seconds N, which is for all of it",
    "--inputs": "write --input FILE",
    "--outputs": "write --output FILE",
}


def _of_tvmc(tree: Target, words: Iterable[str]) -> Iterator[tuple[str, object]]:
    """Yield overrides for `--target-KIND-ATTRIBUTE=VALUE` and the same of executors and runtimes."""
    queue = list(words)
    while queue:
        word = queue.pop(0)
        name, equals, value = word.partition("=")
        if name in _INSTEAD:
            raise UnknownNameError(f"{name} is an option of tvmc that is not here; {_INSTEAD[name]}")
        if not word.startswith("--"):
            raise UnknownNameError(f"unexpected argument {word!r}")
        if not equals and queue and not queue[0].startswith("-"):
            value = queue.pop(0)
        yield from _overrides(tree, name.removeprefix("--"), value or "1")


def _overrides(tree: Target, option: str, value: str) -> Iterator[tuple[str, object]]:
    role, _, rest = option.partition("-")
    paths = dict(_kinds_of(tree, role))
    kind = next((kind for kind in sorted(paths.values(), key=len, reverse=True) if rest.startswith(f"{kind}-")), None)
    if kind is None:
        known = [f"--{role}-{kind}-..." for kind in dict.fromkeys(paths.values())]
        raise UnknownNameError(f"no such option --{option}{did_you_mean(option, known, listing='there are')}")
    for path, found in paths.items():
        if found == kind:
            name = rest.removeprefix(f"{kind}-")
            yield f"{path}/{name}".lstrip("/"), _value(_ROLES[role], kind, name, value)


def _value(role: Role, kind: str, name: str, value: str) -> object:
    """Split a list at its commas, as TVM does; every other value is read as in a target's text."""
    from tvmtarget.target.kinds import find_kind
    from tvmtarget.target.tvm.quoting import split
    from tvmtarget.target.values import read_items

    row = find_kind(kind, role)
    attribute = row.attribute(name) if row is not None else None
    if attribute is None or not attribute.is_list:
        return Word(value)
    items = [item.strip() for _, item in split(value, ",", "plain")]
    return [word for item in items for word in read_items(Word(item))] if attribute.type == "features" else items


_ROLES: dict[str, Role] = {"target": "target", "executor": "executor", "runtime": "runtime"}


def _kinds_of(tree: Target, role: str) -> Iterator[tuple[str, str]]:
    """Yield the paths and kinds that options of a role may name; a host that is written in a node is one, too."""
    if role == "target":
        for path, node in tree.walk():
            yield path, node.kind
            if isinstance(node.host, type(tree)):
                yield from ((f"{path}/host/{below}".strip("/"), kind) for below, kind in _kinds_of(node.host, role))
    elif role in _ROLES:
        chosen = tree.executor if role == "executor" else tree.runtime
        if chosen is not None:
            yield role, chosen.kind
