"""The target of a command line, and the options that edit it: overlays, executor and runtime, values.

Options of tvmc, TVM's command line, are accepted too: `--target-llvm-mcpu=...` sets an attribute of every llvm in the
tree, `--executor aot --executor-aot-unpacked-api=1` and `--runtime crt` set executor and runtime.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from tvmtarget.cli.completion import complete_target
from tvmtarget.cli.options import Command, UsageError
from tvmtarget.errors import TargetFileError, TextError, TvmTargetError, UnknownNameError, did_you_mean, raise_all
from tvmtarget.files import has_file
from tvmtarget.target.attributes import Word
from tvmtarget.target.problems import shown
from tvmtarget.untrusted import parse_json, read_text

if TYPE_CHECKING:
    from tvmtarget.target.kinds import Role
    from tvmtarget.target.tree import Target

__all__ = ["OptionalTarget", "TargetArgument", "TargetEdits", "TargetText", "TvmcCommand", "read_target"]

_HELP = (
    "A target: a tag (aws/c5), its text (llvm(num-cores=4)), JSON, native, or the path of a .json or .toml file, "
    "unless that is a tag or a text too."
)

TargetArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        help=_HELP,
        show_default=False,
        autocompletion=complete_target,
    ),
]
_TARGET = typer.Option(
    "--target",
    "-t",
    help=_HELP,
    show_default=False,
    autocompletion=complete_target,
)
TargetText: TypeAlias = Annotated[str, _TARGET]
OptionalTarget: TypeAlias = Annotated[str | None, _TARGET]
With: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--with", help="Overlay the target with a tag or a text; may be repeated.", autocompletion=complete_target
    ),
]
Set: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", help="Set a value, PATH=VALUE (cpu/num-cores=8), or a feature, +FEATURE or PATH/+FEATURE."),
]
Unset: TypeAlias = Annotated[
    list[str] | None, typer.Option("--unset", help="Remove the value at a path, such as cpu/num-cores.")
]
Executor: TypeAlias = Annotated[
    str | None, typer.Option("--executor", help="The executor: graph, aot or vm.", show_default=False)
]
Runtime: TypeAlias = Annotated[
    str | None,
    typer.Option("--runtime", help="The runtime: python, processes, dask, cpp or crt.", show_default=False),
]


def _configure(context: typer.Context, name: str | None) -> str | None:
    """Make the values of a configuration file the defaults of the command's options."""
    # click sets `resilient_parsing` while a shell completes a word, where an error would garble the command line.
    if name is None or context.resilient_parsing:
        return name
    from tvmtarget.tags.configurations import load_configuration, split_configuration

    target, executor, runtime, options = split_configuration(load_configuration(name))
    parameters = {flag: one for one in context.command.params for flag in one.opts if one.name != "config"}
    values: dict[str, object] = {}
    problems: list[str] = []
    for option, value in options.items():
        flag = f"--{option.replace('_', '-')}"
        is_repeatable = getattr(parameters.get(flag), "multiple", False)
        if flag in parameters and not isinstance(value, dict if is_repeatable else dict | list):
            values[str(parameters[flag].name)] = [value] if is_repeatable and not isinstance(value, list) else value
        elif flag in parameters:
            problems.append(f"{option!r} of configuration {name!r} is one value, not {shown(value)}")
        elif flag in _INSTEAD:
            option = f"{option}: {', '.join(value)}" if isinstance(value, dict) else option
            problems.append(
                f"{option!r} of configuration {name!r} is an option of tvmc that is not supported; {_INSTEAD[flag]}"
            )
        else:
            tail = did_you_mean(option, ["targets", *(one[2:] for one in parameters if one.startswith("--"))])
            problems.append(f"{option!r} of configuration {name!r} is not an option of this command{tail}")
    raise_all(TextError, problems)
    for part, value in (("target", target), ("executor", executor), ("runtime", runtime)):
        values |= {} if value is None else {part: json.dumps(value.to_json())}
    # Defaults, not values: options on the command line take precedence over the file.
    context.default_map = {**(context.default_map or {}), **values}
    return name


Config: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--config",
        help="A JSON configuration, by file or name: targets, executor, runtime and defaults of other options.",
        show_default=False,
        # Eager, so that the defaults are set before click processes the other options.
        is_eager=True,
        callback=_configure,
    ),
]


@dataclass(frozen=True)
class TargetEdits:
    """The options that edit the target of a command line, in the order in which they are applied."""

    overlays: With = None
    executor: Executor = None
    runtime: Runtime = None
    values: Set = None
    unset: Unset = None
    config: Config = None

    def __bool__(self) -> bool:
        return any(value not in (None, []) for value in vars(self).values())


class TvmcCommand(Command):
    """A command that accepts options of tvmc; `read_target`, which knows the kinds in the tree, takes them.

    `context.args` has those of a command line, in the forms `--NAME=VALUE` and `--NAME`.
    """

    def _split_words(self, ctx: Any, words: list[str]) -> tuple[list[str], list[str]]:  # noqa: ANN401
        # click itself would take an option that it does not know for the first argument.
        own, others = _split_words(words, self.get_params(ctx))
        found: dict[str, str] = {}
        for option in () if ctx.resilient_parsing else others:
            name = option.partition("=")[0]
            self._reject_unknown(ctx, name)
            if found.setdefault(name, option) != option:
                raise UsageError(f"{name} has two values, in {found[name]} and {option}; give one of them")
        return own, others

    def _reject_unknown(self, ctx: Any, name: str) -> None:  # noqa: ANN401 - a context of click
        if name in _INSTEAD:
            raise UsageError(f"{name} is an option of tvmc that is not supported; {_INSTEAD[name]}")
        if name.split("-")[2:3] not in ([role] for role in _ROLES):
            flags = [flag for parameter in self.params for flag in parameter.opts if flag.startswith("-")]
            near = did_you_mean(name, flags) or f"; see `{ctx.command_path} --help`"
            raise UsageError(f"no such option {name}{near}")


def _split_words(words: Sequence[str], parameters: Iterable[Any]) -> tuple[list[str], list[str]]:
    """Split a command line into the words of its command, and other options, those with a value as `NAME=VALUE`."""
    takes_value = {
        flag: not (one.is_flag or one.count)
        for one in parameters
        if one.param_type_name == "option"
        for flag in (*one.opts, *one.secondary_opts)
    }
    own: list[str] = []
    others: list[str] = []
    queue = list(words)
    while queue:
        word = queue.pop(0)
        name, equals, _ = word.partition("=")
        # The value of a short option may follow it in one word: -tllvm.
        flag = name if word.startswith("--") else word[:2]
        if word == "--":
            own += [word, *queue]
            break
        if not word.startswith("-") or word == "-" or flag in takes_value:
            own.append(word)
            if takes_value.get(word) and queue:
                own.append(queue.pop(0))
        elif not equals and queue and _is_value(name, queue[0]):
            # As in tvmc, the value may be the next word.
            others.append(f"{name}={queue.pop(0)}")
        else:
            others.append(word)
    return own, others


def _is_value(name: str, word: str) -> bool:
    """Whether a word behind an option of tvmc is its value: a flag may have none."""
    from tvmtarget.target.kinds import find_kind, kind_names

    if word.startswith("-"):
        return False
    role, _, rest = name.removeprefix("--").partition("-")
    kind = _kind_in(rest, kind_names(_ROLES[role])) if role in _ROLES else None
    row = find_kind(kind, _ROLES[role]) if kind is not None else None
    attribute = row.attribute(rest.removeprefix(f"{kind}-")) if row is not None else None
    return attribute is None or attribute.type != "bool" or word.lower() in ("0", "1", "false", "true")


def _kind_in(option: str, kinds: Iterable[str]) -> str | None:
    """Return the kind that an option `KIND-ATTRIBUTE` names: the longest, as one may be the beginning of another."""
    return max((kind for kind in kinds if option.startswith(f"{kind}-")), key=len, default=None)


def read_target(text: str, edits: TargetEdits | None = None, extra: Iterable[str] = ()) -> Target:
    """Parse a target and apply the edits of the command line.

    Args:
        text: A tag, the text of a target, JSON, TOML, or else the path of a .json or .toml file. `native` is this
            machine; it is detected at once, so that saved files hold its facts and not the word.
        edits: The options that edit the target.
        extra: Options of tvmc, such as `--target-llvm-mcpu=skylake`, as `TvmcCommand` returns them; applied after
            executor and runtime.

    Returns:
        The edited target, not yet resolved.

    Raises:
        TargetFileError: A file cannot be read or holds no target.
        TextError: A text or an option is malformed.
        UnknownNameError: A tag, kind, attribute or option does not exist.
    """
    from tvmtarget.target.tree import Target

    edits = edits or TargetEdits()
    tree = Target.detect() if text == "native" else _parse(text)
    for overlay in edits.overlays or ():
        tree = tree.merge(_parse(overlay))
    for role, chosen in (("executor", edits.executor), ("runtime", edits.runtime)):
        if chosen is not None:
            is_json = chosen.lstrip().startswith("{")
            tree = tree.override({role: parse_json(chosen, f"--{role}", error=TextError) if is_json else chosen})
    # After executor and runtime, because options such as --executor-aot-... name the kind that is chosen there.
    for path, value in _tvmc_overrides(tree, extra):
        tree = tree.override({path: value})
    _check_edits(edits)
    for assignment in edits.values or ():
        tree = tree.override(dict([_split_assignment(assignment)]))
    for path in edits.unset or ():
        tree = tree.unset(path)
    return tree


def _parse(text: str) -> Target:
    """Parse a target, or read it from a file; a tag or a text wins, so that a new file changes no command line."""
    from tvmtarget.target.tree import Target

    try:
        return Target.parse(text)
    except (TextError, UnknownNameError) as error:
        if text.endswith((".json", ".toml")):
            return _read_file(text)
        if has_file(path := Path(text)) and path.is_file():
            problem = f"{error}; there is a file of this name, but files of targets end in .json or .toml"
            raise TargetFileError(problem, path=text) from error
        raise


def _read_file(path: str) -> Target:
    from tvmtarget.target.tree import Target

    text = read_text(path, "target file", error=TargetFileError)
    try:
        return Target.parse(text)
    except TvmTargetError as error:
        problems = (f"{problem} (in target file {path!r})" for problem in error.problems)
        column = error.column if isinstance(error, TextError) else None
        raise TargetFileError(*problems, path=path, offset=column) from error


def _check_edits(edits: TargetEdits) -> None:
    """Raise `UsageError` for paths with two values, or with one that is removed again."""
    found: dict[str, str] = {}
    problems: list[str] = []
    for text in edits.values or ():
        path, value = _split_assignment(text)
        if isinstance(value, list):  # a feature, which has the path of all features of its node
            (feature,) = value
            path, value = f"{path.removesuffix('+')}{feature[1:]}", feature
        if found.setdefault(path, str(value)) != str(value):
            problems.append(f"--set {path!r} is both {found[path]!r} and {str(value)!r}; give one value")
    problems += [f"{path!r} is both in --set and in --unset" for path in edits.unset or () if path in found]
    raise_all(UsageError, problems)


def _split_assignment(text: str) -> tuple[str, object]:
    """Split PATH=VALUE, or a feature PATH/+NAME; values have the syntax of a target's text."""
    above, _, last = text.rpartition("/")
    if last[:1] in ("+", "-") and "=" not in last:
        return f"{above}/+".lstrip("/"), [last]
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise UsageError(f"--set {text!r} is not PATH=VALUE, such as cpu/num-cores=8, or a feature, such as cpu/+avx2")
    return path.strip(), Word(value.strip())


# What replaces options of tvmc (python/tvm/driver/tvmc/{compiler,autotuner,runner}.py at v0.18.0).
_INSTEAD = {
    **dict.fromkeys(("--opt-level", "-O"), "write --target-llvm-opt-level=3"),
    **dict.fromkeys(("--pass-config", "--disabled-pass"), "passes of TVM cannot be configured"),
    **dict.fromkeys(("--output-format", "-f"), "the runtime decides the format: --runtime crt"),
    **dict.fromkeys(("--cross-compiler", "--cross-compiler-options"), "write --target-llvm-mtriple=aarch64-linux-gnu"),
    **dict.fromkeys(("--desired-layout", "--desired-layout-ops"), "code generators choose layouts"),
    **dict.fromkeys(("--dump-code", "--dump-offloads"), "`tvmtarget explain` reports what runs on which site"),
    "--input-shapes": "the model holds the shapes; write --dim NAME=N for a symbolic dimension",
    "--model-format": "models are ONNX files",
    "--target-host": "write it after the device: --target 'cuda, llvm'",
    "--tuning-records": "write --log FILE; `tvmtarget log import` imports records of TVM",
    "--workspace-pools": "declare memories of the target",
    "--timeout": "write --seconds N, for the whole command",
    "--device": "the target names the device, as in --target cuda",
    "--fill-mode": "write --input FILE, with arrays by the names of inputs",
    **dict.fromkeys(("--print-time", "--benchmark", "--repeat", "--number"), "write --profile N, to time N runs"),
    **dict.fromkeys(("--rpc-key", "--rpc-tracker", "--hostname", "--port"), "write --scheduler, with --runtime dask"),
    "--inputs": "write --input FILE",
    "--outputs": "write --output FILE",
}


def _tvmc_overrides(tree: Target, words: Iterable[str]) -> Iterator[tuple[str, object]]:
    """Yield paths and values of `--target-KIND-ATTRIBUTE=VALUE`, and of the same options for executors and runtimes."""
    for word in words:
        name, equals, value = word.partition("=")
        yield from _overrides(tree, name.removeprefix("--"), value if equals else None)


def _overrides(tree: Target, option: str, value: str | None) -> Iterator[tuple[str, object]]:
    role, _, rest = option.partition("-")
    paths = dict(_kinds_of(tree, role))
    kind = _kind_in(rest, paths.values())
    if kind is None:
        raise UsageError(f"no such option --{option}{_instead_of(role, rest, paths.values())}")
    for path, found in paths.items():
        if found == kind:
            name = rest.removeprefix(f"{kind}-")
            yield f"{path}/{name}".lstrip("/"), _value(_ROLES[role], kind, name, value)


def _instead_of(role: str, rest: str, kinds: Iterable[str]) -> str:
    """Return the end of the message about an option for a kind that the target does not have."""
    from tvmtarget.target.kinds import kind_names

    known = list(dict.fromkeys(kinds))
    other = _kind_in(rest, kind_names(_ROLES[role])) if role in _ROLES else None
    if other and role != "target":
        return f"; it needs --{role} {other}" + (f", and the {role} is {known[0]!r}" if known else "")
    return did_you_mean(f"--{role}-{rest}", [f"--{role}-{kind}-..." for kind in known], listing="there are")


def _value(role: Role, kind: str, name: str, value: str | None) -> object:
    """Split the value of a list at its commas, as TVM does; other values have the syntax of a target's text."""
    from tvmtarget.target.kinds import find_kind
    from tvmtarget.target.tvm.quoting import split
    from tvmtarget.target.values import read_items

    row = find_kind(kind, role)
    attribute = row.attribute(name) if row is not None else None
    if value is None and attribute is not None and attribute.type != "bool":
        raise UsageError(f"--{role}-{kind}-{name} needs a value, as in --{role}-{kind}-{name}=VALUE")
    value = "1" if value is None else value
    if attribute is None or not attribute.is_list:
        return Word(value)
    items = [item.strip() for _, item in split(value, ",", "plain")]
    return [word for item in items for word in read_items(Word(item))] if attribute.type == "features" else items


_ROLES: dict[str, Role] = {"target": "target", "executor": "executor", "runtime": "runtime"}


def _kinds_of(tree: Target, role: str) -> Iterator[tuple[str, str]]:
    """Yield the paths and kinds that options of a role may name, including hosts written inside a node."""
    if role == "target":
        for path, node in tree.walk():
            yield path, node.kind
            if isinstance(node.host, type(tree)):
                yield from ((f"{path}/host/{below}".strip("/"), kind) for below, kind in _kinds_of(node.host, role))
    elif role in _ROLES:
        chosen = tree.executor if role == "executor" else tree.runtime
        if chosen is not None:
            yield role, chosen.kind
