"""Fuzz the readers of modules: ONNX bytes, text, JSON, saved files.

    python tests/tools/fuzz_ir.py onnx --seconds 150 --seed 1 [--keep FOLDER]

Whatever is read, only errors of this library may come out, within seconds and in bounded memory; and what was read
must be written again. With atheris installed (`pip install atheris`) coverage guides the changes; without, inputs of a
corpus are changed at random. What breaks the rule is kept as a file; a reader that crashes leaves `last.bin`.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "ir"))
sys.path.insert(0, str(Path(__file__).parents[1]))

try:
    import atheris
except ImportError:
    atheris = None

MAX_SECONDS = 20  # for one input
MAX_BYTES = 8 << 30  # of address space

if atheris is not None:
    with atheris.instrument_imports(include=["tvmtarget"]):
        import tvmtarget as tt
        from tvmtarget.ir.onnx import (
            writer,  # noqa: F401 - imported late elsewhere
        )
else:
    import tvmtarget as tt
import onnx  # noqa: E402 - what is instrumented comes first
from models import small  # noqa: E402
from onnx import helper  # noqa: E402
from random_programs import random_program  # noqa: E402

from tvmtarget.artifact import MODULE, write_files  # noqa: E402
from tvmtarget.errors import TvmTargetError  # noqa: E402

FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-ir-"))


def rewritten(module: tt.IRModule) -> None:
    """Write what was read in all forms, and read it again."""
    constants = module.constants()
    if tt.IRModule.parse(str(module), constants) != module:
        raise AssertionError("the text form is not read back")
    if tt.IRModule.from_json(json.dumps(module.to_json()), constants) != module:
        raise AssertionError("the JSON form is not read back")
    module.structural_hash()


def read_onnx(data: bytes) -> None:
    """Read a model, with functions inlined and kept, and write it again."""
    for keep in (False, True):
        module = tt.IRModule.from_onnx(data, keep_functions=keep)
        rewritten(module)
        module.to_onnx()


def read_text(data: bytes) -> None:
    """Read a text."""
    rewritten(tt.IRModule.parse(data.decode("utf-8", "surrogateescape")))


def read_json(data: bytes) -> None:
    """Read JSON, from bytes."""
    rewritten(tt.IRModule.from_json(data))


def read_saved(data: bytes) -> None:
    """Read a file, as it is, and as the description of a module in a file whose digests are right."""
    (FOLDER / "m.irm").write_bytes(data)
    if data[:2] != b"PK":
        write_files(FOLDER / "m.irm", {"module.json": data}, form=MODULE)
    rewritten(tt.IRModule.load(FOLDER / "m.irm"))


READERS: dict[str, Callable[[bytes], None]] = {
    "onnx": read_onnx,
    "text": read_text,
    "json": read_json,
    "saved": read_saved,
}


def models() -> list[onnx.ModelProto]:
    """Return small models with control flow, functions, names of all kinds, sparse and other types."""
    found = [random_program(seed, size=6, opset=11 + seed % 10) for seed in range(24)]
    body = [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("G", ["b"], ["c"], domain="my")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    model = small(helper.make_node("F", ["x"], ["y"], domain="my"))
    model.opset_import.append(opsets[1])
    model.functions.append(helper.make_function("my", "F", ["a"], ["c"], body, opsets))
    inner = [helper.make_node("Softmax", ["a"], ["b"])]
    model.functions.append(helper.make_function("my", "G", ["a"], ["b"], inner, [helper.make_opsetid("", 11)]))
    found.append(model)
    sparse = small(helper.make_node("Add", ["x", "s"], ["y"], doc_string="d"))
    values, at = helper.make_tensor("s", 1, [2], [1.0, 2.0]), helper.make_tensor("i", 7, [2], [1, 4])
    sparse.graph.sparse_initializer.append(helper.make_sparse_tensor(values, at, [2, 3]))
    found.append(sparse)
    return found


def corpus(form: str) -> list[bytes]:
    """Return inputs that are right, to be changed."""
    if form == "onnx":
        return [model.SerializeToString() for model in models()]
    modules = [tt.IRModule.from_onnx(model) for model in models()]
    golden = (Path(__file__).parents[1] / "ir" / "everything.golden").read_bytes()
    if form == "text":
        return [str(module).encode() for module in modules] + [golden]
    texts = [json.dumps(module.to_json()).encode() for module in modules]
    if form == "json":
        return texts
    modules[0].save(FOLDER / "seed.irm")
    return [*texts, (FOLDER / "seed.irm").read_bytes()]


INTERESTING = [
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"-1",
    b"99999999999999999999",
    b"[",
    b"{",
    b'"',
    b"(",
    b"%",
    b"1e999",
]


def changed(rng: random.Random, seeds: list[bytes]) -> bytes:
    """Change an input at some places: bytes, pieces moved, repeated or taken from another, numbers of extremes."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice([1, 2, 8, 64]))
        match rng.randrange(7):
            case 0:
                data[at:end] = rng.randbytes(end - at)
            case 1:
                del data[at:end]
            case 2:
                data[at:at] = data[at:end] * rng.choice([1, 2, 50])
            case 3:
                data[at:end] = rng.choice(INTERESTING)
            case 4:
                other = rng.choice(seeds)
                begin = rng.randrange(len(other) + 1)
                data[at:end] = other[begin : begin + rng.choice([4, 32, 256])]
            case 5 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case _:
                begin = rng.randrange(len(data) + 1)
                data[at:at] = data[begin : begin + 16]
    return bytes(data)


class Judge:
    """Runs a reader on one input after another, counts what comes of them, and keeps what should not."""

    def __init__(self, form: str, keep: Path) -> None:
        self.form, self.keep = form, keep
        self.read = READERS[form]
        self.counts: Counter[str] = Counter()
        self.seen: set[str] = set()
        self.last = os.open(FOLDER / "last.bin", os.O_RDWR | os.O_CREAT)

    def __call__(self, data: bytes) -> None:
        os.pwrite(self.last, data, 0)
        os.ftruncate(self.last, len(data))
        signal.alarm(MAX_SECONDS)
        try:
            self.read(bytes(data))
            self.counts["read"] += 1
        except TvmTargetError as error:
            self.counts[type(error).__name__] += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            self.failed(data, error)
        finally:
            signal.alarm(0)

    def failed(self, data: bytes, error: BaseException) -> None:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        key = f"{type(error).__name__}-{Path(frame.filename).stem}-{frame.lineno}"
        self.counts[f"FAILED {key}"] += 1
        if key not in self.seen:
            self.seen.add(key)
            self.keep.mkdir(parents=True, exist_ok=True)
            (self.keep / f"{self.form}-{key}.bin").write_bytes(data)
            print(f"kept {self.form}-{key}: {error!s:.200}", flush=True)


def too_slow(*_: object) -> None:
    raise TimeoutError(f"took more than {MAX_SECONDS} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("form", choices=READERS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=FOLDER / "kept")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    faulthandler.enable()
    signal.signal(signal.SIGALRM, too_slow)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    judge, seeds = Judge(options.form, options.keep), corpus(options.form)
    print(f"{options.form}: {len(seeds)} seeds, {'atheris' if atheris else 'random changes'}, in {FOLDER}", flush=True)
    if atheris is not None:
        (FOLDER / "corpus").mkdir()
        for number, seed in enumerate(seeds):
            (FOLDER / "corpus" / str(number)).write_bytes(seed)
        end = time.monotonic() + options.seconds

        def once(data: bytes) -> None:
            judge(data)
            if time.monotonic() > end:
                print(f"{sum(judge.counts.values())} inputs: {dict(judge.counts)}", flush=True)
                os._exit(bool(judge.seen))

        limits = [
            "-max_len=8192",
            "-rss_limit_mb=8192",
            f"-seed={options.seed}",
            "-verbosity=0",
            f"-artifact_prefix={FOLDER}/",
        ]

        def mutated(data: bytes, size: int, seed: int) -> bytes:
            rng = random.Random(seed)
            return changed(rng, [data, rng.choice(seeds)])[:size] if rng.random() < 0.7 else atheris.Mutate(data, size)

        atheris.Setup([sys.argv[0], *limits, str(FOLDER / "corpus")], once, custom_mutator=mutated)
        atheris.Fuzz()
    rng, end = random.Random(options.seed), time.monotonic() + options.seconds
    while time.monotonic() < end:
        judge(changed(rng, seeds))
    print(f"{sum(judge.counts.values())} inputs: {dict(judge.counts)}", flush=True)
    return bool(judge.seen)


if __name__ == "__main__":
    sys.exit(main())
