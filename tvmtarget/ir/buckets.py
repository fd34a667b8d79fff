"""Bodies for given sizes of symbolic dimensions, between which a program chooses when it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from tvmtarget.errors import ModelError
from tvmtarget.ir.function import Call, Constant, Function, Value, all_names, calls_in
from tvmtarget.ir.inline import rename_values
from tvmtarget.ir.module import IRModule
from tvmtarget.ir.names import Names
from tvmtarget.ir.specialize import specialize
from tvmtarget.ir.types import Dim, TensorType, Type, dtype_of
from tvmtarget.target.argument_types import check_arguments

__all__ = ["with_buckets"]

# Since this version, Reshape takes the sizes as an operand, and Equal needs no attributes.
_FIRST_OPSET = 7


@check_arguments
def with_buckets(module: IRModule, buckets: Sequence[Mapping[str, int]]) -> IRModule:
    """Add a body for each of some sizes to a program with symbolic dimensions.

    A code generator that takes static shapes only can compile these bodies, and its kernels are tuned for their sizes.
    Inputs are not padded: those of other sizes run the body with symbolic dimensions. All bodies share the constants.

    Args:
        module: The program, with one function.
        buckets: Sizes by the names of dimensions, such as `[{"batch": 1}, {"batch": 8}]`; the first that fits is
            taken. Dimensions that a bucket leaves out stay symbolic in it.

    Returns:
        The program. It is a chain of `If` operations whose conditions compare the sizes of the inputs. The names of
        operations in a bucket end in its sizes: `*:batch8` names all of one.

    Raises:
        ModelError: As for `specialize`; or a bucket has no sizes or is given twice, or the program uses an operator set
            before 7.
    """
    given = [dict(bucket) for bucket in buckets]
    for at, bucket in enumerate(given):
        if not bucket:
            raise ModelError("a bucket without sizes is the program itself; give it the size of a dimension")
        if bucket in given[:at]:
            raise ModelError(f"the bucket {_label(bucket)} is given twice")
    bodies = [(bucket, specialize(module, bucket).main) for bucket in given]
    choice = _Buckets(module.main)
    if not bodies or not choice.results:
        return module
    version = dict(module.main.opsets).get("", 0)
    if version < _FIRST_OPSET:
        raise ModelError(
            f"buckets need operator set {_FIRST_OPSET} of ONNX, and the program uses {version}; upgrade it"
        )
    return module.replace(functions=(choice.function(bodies),)).verify()


def _label(bucket: Mapping[str, int]) -> str:
    return ":".join(f"{name}{size}" for name, size in bucket.items())


class _Buckets:
    """Makes the operations that choose between bodies of one function."""

    def __init__(self, main: Function) -> None:
        self._main = main
        self._values = Names(all_names(main))
        self._sources = Names(call.source for call in calls_in(main))
        self._constants = list(main.constants)
        self._calls: list[Call] = []
        self._sizes: dict[str, str] = {}

    def function(self, bodies: Sequence[tuple[Mapping[str, int], Function]]) -> Function:
        """Return the function that chooses the first body whose sizes its inputs have, or its own."""
        conditions = [self._condition(bucket) for bucket, _ in bodies]
        branch = self._branch("else_branch", self._main, {})
        for condition, (bucket, body) in reversed([*zip(conditions, bodies, strict=True)]):
            then = self._branch("then_branch", body, bucket)
            outputs = tuple(self._new(result, self._main.types[result]) for result in self.results)
            regions = (("then_branch", then), ("else_branch", branch))
            choice = Call("onnx.If", (condition,), outputs, (), regions, source=self._named("bucket", bucket))
            branch = Function("else_branch", (), (choice,), tuple(one.name for one in outputs))
        names = dict(zip(branch.results, self.results, strict=True))
        chosen = rename_values(branch, names)
        return self._main.replace(body=(*self._calls, *chosen.body), constants=tuple(self._constants))

    @cached_property
    def results(self) -> tuple[str, ...]:
        """The results that operations compute, each once."""
        computed = {one.name for call in self._main.body for one in call.outputs}
        return tuple(name for name in dict.fromkeys(self._main.results) if name in computed)

    def _branch(self, label: str, body: Function, bucket: Mapping[str, int]) -> Function:
        """Return a body as a branch, which reads the parameters and constants of the function around it."""
        sized = [*self._sized(bucket)]
        results = {name: self._values.fresh(name) for name in self.results}
        renamed = rename_values(body, {call.inputs[0]: call.outputs[0].name for call in sized} | results)
        if bucket:
            renamed = self._with_names(renamed, bucket)
        return Function(label, (), (*sized, *renamed.body), tuple(results.values()))

    def _sized(self, bucket: Mapping[str, int]) -> Iterator[Call]:
        """Yield the operations that give parameters the sizes of a bucket, which they have already."""
        for param, type_, dims in self._shapes:
            if any(dim in bucket for dim in dims):
                shape = tuple(bucket.get(dim, dim) if isinstance(dim, str) else dim for dim in dims)
                # 0 keeps a size.
                wanted = self._constant("sizes", [dim if isinstance(dim, int) else 0 for dim in shape])
                output = self._new(param, TensorType(type_.dtype, shape))
                yield Call("onnx.Reshape", (param, wanted), (output,), source=self._named(param, bucket))

    @cached_property
    def _shapes(self) -> list[tuple[str, TensorType, tuple[Dim, ...]]]:
        """The parameters that are tensors of known rank: name, type and dimensions."""
        types = ((param.name, param.type) for param in self._main.params)
        return [(name, one, one.shape) for name, one in types if isinstance(one, TensorType) and one.shape]

    def _with_names(self, body: Function, bucket: Mapping[str, int]) -> Function:
        """Return a body whose operations, in nested bodies too, have names that end in the sizes of a bucket."""
        calls = []
        for call in body.body:
            regions = tuple((label, self._with_names(region, bucket)) for label, region in call.regions)
            calls.append(replace(call, regions=regions, source=self._named(call.source or call.kind, bucket)))
        return body.replace(body=tuple(calls))

    def _named(self, name: str, bucket: Mapping[str, int]) -> str:
        return self._sources.fresh(f"{name}:{_label(bucket)}" if bucket else name)

    def _condition(self, bucket: Mapping[str, int]) -> str:
        """Add the operations that compare the inputs with a bucket; return the name of the result."""
        flag = TensorType("bool", ())
        equal = [
            self._call("Equal", (self._size(name), self._constant("size", size)), f"is_{name}_{size}", flag)
            for name, size in bucket.items()
        ]
        found = equal[0]
        for one in equal[1:]:
            found = self._call("And", (found, one), "is_bucket", flag)
        return found

    def _size(self, name: str) -> str:
        """Add the operations that read a symbolic dimension; return the name of the result."""
        if name not in self._sizes:
            param, dims = next((param, dims) for param, _, dims in self._shapes if name in dims)
            shape = self._call("Shape", (param,), f"shape_of_{param}", TensorType("int64", (len(dims),)))
            axis = self._constant("axis", dims.index(name))
            self._sizes[name] = self._call("Gather", (shape, axis), f"size_of_{name}", TensorType("int64", ()))
        return self._sizes[name]

    def _call(self, op: str, inputs: tuple[str, ...], name: str, type_: Type) -> str:
        output = self._new(name, type_)
        self._calls.append(Call(f"onnx.{op}", inputs, (output,), source=self._sources.fresh(output.name)))
        return output.name

    def _constant(self, name: str, data: int | Sequence[int]) -> str:
        array = np.asarray(data, "int64")
        constant = Constant(self._values.fresh(name), TensorType(dtype_of(array.dtype), array.shape), array)
        self._constants.append(constant)
        return constant.name

    def _new(self, name: str, type_: Type) -> Value:
        return Value(self._values.fresh(name), type_)
