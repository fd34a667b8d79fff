"""Text syntax of Relax types and expressions, printed and parsed.

It is a subset of Python's expressions; in EBNF:

    type       = "Tensor(" , shape , "," , dtype , [ ", ndim=" , rank ] , [ ", vdevice=" , number ] , ")" |
                 "Shape(" , dims , ")" | "Tuple(" , types , ")" | "Prim(" , dtype , ")" | "Any()" | "Packed()" |
                 "String()" | "Func(" , ( "(" , types , ")" | "None" ) , "," , type , "," , purity , ")" ;
    expression = "_" , operand number | "(" , expressions , ")" | "Shape(" , dims , ")" | "Global(" , name , ")" |
                 "Extern(" , name , ")" | "DType(" , name , ")" | string | dim ;
    dim        = number | symbol | arithmetic on these as in Python ; also truncdiv, truncmod, min, max, Not, Select,
                 Cast(dtype, x), Call(operator, dtype, ...), Imm(dtype, number) ;

Numbers without a type are int64. Nothing is simplified, so that parsing gives back what was printed.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tvmtarget.errors import ModelError, TvmTargetError, first_line
from tvmtarget.ir.names import Names
from tvmtarget.ir.relax.tvm_library import the_tvm
from tvmtarget.ir.types import DTYPES, OpaqueType, TensorType, Type, numpy_dtype
from tvmtarget.target.problems import shown

__all__ = [
    "Printer",
    "Reader",
    "Symbols",
    "dtype_name",
    "on_vdevice",
    "read_text",
    "rename_symbols",
    "symbols_in",
    "tuple_fields",
    "tvm_dtype",
    "type_of",
    "type_text",
]

_Result = TypeVar("_Result")

_BINARY = {
    "Add": "+",
    "Sub": "-",
    "Mul": "*",
    "FloorDiv": "//",
    "FloorMod": "%",
    "LShift": "<<",
    "RShift": ">>",
    "BitwiseAnd": "&",
    "BitwiseOr": "|",
    "BitwiseXor": "^",
    "EQ": "==",
    "NE": "!=",
    "LT": "<",
    "LE": "<=",
    "GT": ">",
    "GE": ">=",
    "And": "and",
    "Or": "or",
}
_NAMED = {"Div": "truncdiv", "Mod": "truncmod", "Min": "min", "Max": "max", "Select": "Select", "Not": "Not"}
_TYPES = {"Any", "Func", "Packed", "Prim", "Shape", "String", "Tensor", "Tuple"}
_RESERVED = frozenset(_NAMED.values()) | _TYPES | {"Call", "Cast", "DType", "Extern", "Global", "Imm"}
_KEYWORDS = frozenset({"None", "True", "False", "and", "or", "not", "ndim", "vdevice"})
# Strings are matched too, so that the name of an element type in quotes is not taken for a symbol.
_WORD = re.compile(r"'[^']*'|[^\W\d]\w*")


class Symbols:
    """Unique names of the symbolic variables of a module."""

    def __init__(self) -> None:
        self._names = Names(_RESERVED | _KEYWORDS)
        self._known: dict[Any, str] = {}

    def name(self, variable: Any) -> str:
        """Return the name of a variable.

        Args:
            variable: a TVM variable.

        Returns:
            Its own name if that is free and an identifier, else a fresh one.
        """
        if variable not in self._known:
            own = str(variable.name)
            # `_0` and `_1` are operands in this syntax, so that no symbol begins with an underscore.
            is_word = own.isidentifier() and not keyword.iskeyword(own) and not own.startswith("_")
            self._known[variable] = self._names.fresh(own if is_word else "n")
        return self._known[variable]


class Printer:
    """Prints Relax types and expressions."""

    def __init__(self, symbols: Symbols, vdevices: Sequence[Any], operand: Callable[[Any], int | None]) -> None:
        """Begin with the context of a function.

        Args:
            symbols: names of symbolic variables.
            vdevices: virtual devices of the module.
            operand: returns the operand number of an expression that is a value, or None.
        """
        self._tvm = the_tvm()
        self._symbols = symbols
        self._vdevices = vdevices
        self._operand = operand

    def type(self, type_: Any) -> str:
        """Print a type.

        Args:
            type_: a Relax type.

        Returns:
            Its text.

        Raises:
            ModelError: the type has no text form.
        """
        relax, ir = self._tvm.relax, self._tvm.ir
        match type_:
            case relax.TensorType():
                return self._tensor(type_)
            case relax.ShapeType():
                return f"Shape(ndim={type_.ndim})" if type_.values is None else f"Shape({self.dims(type_.values)})"
            case ir.TupleType():
                return f"Tuple({', '.join(map(self.type, type_.fields))})"
            case ir.PrimType():
                return f"Prim({str(type_.dtype)!r})"
            case relax.AnyType():
                return "Any()"
            case relax.PackedFuncType():
                return "Packed()"
            case ir.StringType():
                return "String()"
            case relax.FuncType() if type_.derive_func is None:
                known = type_.params is not None
                params = self._several([self.type(param) for param in type_.params]) if known else "None"
                return f"Func({params}, {self.type(type_.ret)}, {bool(type_.purity)})"
        raise ModelError(f"type {type_} ({type(type_).__name__}) is not supported")

    def _tensor(self, type_: Any) -> str:
        dtype = None if type_.dtype is None else str(type_.dtype.dtype)
        if type_.shape is None:
            shape = f"None, {dtype!r}, ndim={type_.ndim}"
        elif isinstance(type_.shape, self._tvm.relax.ShapeExpr):
            shape = f"{self._several(list(map(self.scalar, type_.shape.values)))}, {dtype!r}"
        else:
            raise ModelError(f"the shape of {type_} is a value, which is not supported; match_cast it to dimensions")
        index = None if type_.vdevice is None else self.vdevice(type_.vdevice)
        return f"Tensor({shape})" if index is None else f"Tensor({shape}, vdevice={index})"

    def vdevice(self, vdevice: Any) -> int:
        """Return the index of a virtual device.

        Args:
            vdevice: the virtual device.

        Returns:
            Its index in the module's list.

        Raises:
            ModelError: the module does not list it.
        """
        for index, known in enumerate(self._vdevices):
            if known == vdevice:
                return index
        raise ModelError(f"virtual device {vdevice} is not among the module's; add it to global_infos['vdevice']")

    def dims(self, values: Sequence[Any]) -> str:
        """Print dimensions, separated by commas.

        Args:
            values: the dimensions.

        Returns:
            Their text.
        """
        return ", ".join(map(self.scalar, values))

    def _several(self, texts: Sequence[str]) -> str:
        return f"({', '.join(texts)}{',' * (len(texts) == 1)})"

    def expression(self, expr: Any) -> str:
        """Print an argument of a call, or the result of a function.

        Args:
            expr: a Relax expression.

        Returns:
            Its text.

        Raises:
            ModelError: the expression has no text form.
        """
        relax, ir = self._tvm.relax, self._tvm.ir
        number = self._operand(expr)
        if number is not None:
            return f"_{number}"
        match expr:
            case ir.Tuple():
                return self._several([self.expression(field) for field in expr.fields])
            case relax.ShapeExpr():
                return f"Shape({self.dims(expr.values)})"
            case ir.GlobalVar():
                return f"Global({str(expr.name_hint)!r})"
            case relax.ExternFunc():
                return f"Extern({str(expr.global_symbol)!r})"
            case ir.StringImm():
                return repr(str(expr.value))
            case ir.GenericConst() if type(expr.value).__name__ == "dtype":
                return f"DType({str(expr.value)!r})"
        if ir.is_prim_expr(expr):
            return self.scalar(expr)
        if isinstance(expr, ir.Var):
            name = str(getattr(expr, "name_hint", expr))
            raise ModelError(
                f"{name!r} is read before it is computed; local functions that call themselves are rejected"
            )
        raise ModelError(f"{type(expr).__name__} as an operand is not supported; run relax.transform.Normalize first")

    def scalar(self, expr: Any) -> str:
        """Print a number, or arithmetic on numbers and symbols.

        Args:
            expr: a primitive expression.

        Returns:
            Its text; nested arithmetic is in parentheses.

        Raises:
            ModelError: the expression has no text form.
        """
        text = self._scalar(expr)
        return text[1:-1] if type(expr).__name__ in _BINARY else text

    def _scalar(self, expr: Any) -> str:
        ir, kind = self._tvm.ir, type(expr).__name__
        if isinstance(expr, ir.Var):
            return self._symbols.name(expr)
        dtype = str(expr.ty.dtype)
        if kind == "IntImm":
            return str(int(expr.value)) if dtype == "int64" else f"Imm({dtype!r}, {int(expr.value)})"
        if kind == "FloatImm":
            return f"Imm({dtype!r}, {float(expr.value)!r})"
        if kind in _BINARY:
            return f"({self._scalar(expr.a)} {_BINARY[kind]} {self._scalar(expr.b)})"
        if kind == "Select":
            parts: Sequence[Any] = (expr.condition, expr.true_value, expr.false_value)
        elif kind in _NAMED:
            parts = (expr.a,) if kind == "Not" else (expr.a, expr.b)
        elif kind == "Cast":
            return f"Cast({dtype!r}, {self._scalar(expr.value)})"
        elif kind == "Call" and isinstance(expr.op, ir.Op) and not expr.ty_args:
            inner = "".join(f", {self._scalar(arg)}" for arg in expr.args)
            return f"Call({str(expr.op.name)!r}, {dtype!r}{inner})"
        else:
            raise ModelError(f"{kind} in a dimension or scalar is not supported")
        return f"{_NAMED[kind]}({', '.join(map(self._scalar, parts))})"


_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "Add",
    ast.Sub: "Sub",
    ast.Mult: "Mul",
    ast.FloorDiv: "FloorDiv",
    ast.Mod: "FloorMod",
    ast.LShift: "LShift",
    ast.RShift: "RShift",
    ast.BitAnd: "BitwiseAnd",
    ast.BitOr: "BitwiseOr",
    ast.BitXor: "BitwiseXor",
    ast.Eq: "EQ",
    ast.NotEq: "NE",
    ast.Lt: "LT",
    ast.LtE: "LE",
    ast.Gt: "GT",
    ast.GtE: "GE",
    ast.And: "And",
    ast.Or: "Or",
}
_CLASSES = {name: kind for kind, name in _NAMED.items()}


class Reader:
    """Parses what `Printer` printed; symbols of one name become one variable."""

    def __init__(
        self, vdevices: Sequence[Any], functions: Mapping[str, Any], symbols: dict[str, Any] | None = None
    ) -> None:
        """Begin with the context of a function.

        Args:
            vdevices: virtual devices of the module.
            functions: global variables of the module by name.
            symbols: symbolic variables by name; new ones are added.
        """
        self._tvm = the_tvm()
        self._prim = self._tvm.tirx
        self._vdevices = vdevices
        self._functions = functions
        self.symbols: dict[str, Any] = {} if symbols is None else symbols

    def symbol(self, name: str, dtype: str = "int64") -> Any:
        """Return the symbolic variable of a name; it is created at first use.

        Args:
            name: name of the symbol.
            dtype: element type of a new variable.

        Returns:
            The variable.
        """
        if name not in self.symbols:
            self.symbols[name] = self._tvm.tirx.Var(name, dtype)
        return self.symbols[name]

    def type(self, text: str) -> Any:
        """Parse a type.

        Args:
            text: its text.

        Returns:
            The Relax type.

        Raises:
            ModelError: the text is malformed.
        """
        return read_text(text, self._type)

    def expression(self, text: str, operands: Sequence[Any] = ()) -> Any:
        """Parse an expression.

        Args:
            text: its text.
            operands: values of `_0`, `_1`, ...

        Returns:
            The Relax expression.

        Raises:
            ModelError: the text is malformed.
        """
        return read_text(text, lambda node: self._expression(node, operands))

    def _type(self, node: ast.expr) -> Any:
        relax, ir = self._tvm.relax, self._tvm.ir
        name, args, keys = _call(node)
        match name, args:
            case "Tensor", [shape, dtype] if keys.keys() <= {"ndim", "vdevice"}:
                dims = None if _literal(shape) is None else relax.ShapeExpr(self._dims(_items(shape)))
                index = keys.get("vdevice")
                if index is not None and not 0 <= index < len(self._vdevices):
                    raise ValueError(f"there is no virtual device {index}; the module has {len(self._vdevices)}")
                vdevice = None if index is None else self._vdevices[index]
                return relax.TensorType(dims, _literal(dtype), vdevice, keys.get("ndim", -1))
            case "Shape", [] if keys.keys() == {"ndim"}:
                return relax.ShapeType(ndim=keys["ndim"])
            case _ if keys:
                raise ValueError(f"{name} with {', '.join(keys)} is unexpected")
            case "Shape", _:
                return relax.ShapeType(self._dims(args))
            case "Tuple", _:
                return ir.TupleType([self._type(field) for field in args])
            case "Prim", [dtype]:
                return ir.PrimType(_literal(dtype))
            case "Any", []:
                return relax.AnyType()
            case "Packed", []:
                return relax.PackedFuncType()
            case "String", []:
                return ir.StringType()
            case "Func", [params, result, purity]:
                if _literal(params) is None:
                    return relax.FuncType.opaque_func(ret=self._type(result), purity=bool(_literal(purity)))
                types = [self._type(param) for param in _items(params)]
                return relax.FuncType(types, self._type(result), bool(_literal(purity)))
        raise ValueError(f"there is no type {name}")

    def _expression(self, node: ast.expr, operands: Sequence[Any]) -> Any:
        relax, ir = self._tvm.relax, self._tvm.ir
        if isinstance(node, ast.Name) and node.id[:1] == "_":
            return operands[int(node.id[1:])]
        if isinstance(node, ast.Tuple):
            return ir.Tuple([self._expression(field, operands) for field in node.elts])
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return ir.StringImm(node.value)
        if isinstance(node, ast.Call):
            name, args, _ = _call(node)
            if name == "Shape":
                return relax.ShapeExpr(self._dims(args))
            if name == "DType":
                return _dtype_constant(self._tvm, _literal(args[0]))
            if name == "Global":
                return self._functions[_literal(args[0])]
            if name == "Extern":
                return relax.ExternFunc(_literal(args[0]))
        return self._scalar(node)

    def _dims(self, nodes: Sequence[ast.expr]) -> list[Any]:
        return [self._scalar(node) for node in nodes]

    def scalar(self, text: str) -> Any:
        """Parse a number, or arithmetic on numbers and symbols.

        Args:
            text: its text.

        Returns:
            The primitive expression.

        Raises:
            ModelError: the text is malformed.
        """
        return read_text(text, self._scalar)

    def _scalar(self, node: ast.expr) -> Any:
        tirx = self._tvm.tirx
        match node:
            case ast.Name(id=name):
                return self.symbol(name)
            case ast.Constant(value=int(value)) | ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
                return tirx.IntImm("int64", -value if isinstance(node, ast.UnaryOp) else value)
            case ast.BinOp(left=left, op=operator, right=right):
                return getattr(tirx, _OPERATORS[type(operator)])(self._scalar(left), self._scalar(right))
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                return getattr(tirx, _OPERATORS[type(operator)])(self._scalar(left), self._scalar(right))
            case ast.BoolOp(op=operator, values=[left, right]):
                return getattr(tirx, _OPERATORS[type(operator)])(self._scalar(left), self._scalar(right))
        name, args, _ = _call(node)
        if name == "Imm":
            value = _literal(args[1])
            return (tirx.FloatImm if isinstance(value, float) else tirx.IntImm)(_literal(args[0]), value)
        if name == "Cast":
            return tirx.Cast(_literal(args[0]), self._scalar(args[1]))
        if name == "Call":
            inner = [self._scalar(arg) for arg in args[2:]]
            return self._tvm.ir.Call(_literal(args[0]), inner, ret_ty=_literal(args[1]))
        return getattr(tirx, _CLASSES[name])(*[self._scalar(arg) for arg in args])


# Exceptions of Python's parser and of TVM for malformed texts.
_MALFORMED = (SyntaxError, RuntimeError, MemoryError, ValueError, TypeError, LookupError, AttributeError)


def read_text(text: str, read: Callable[[ast.expr], _Result]) -> _Result:
    """Parse a type or an expression, which may come from an untrusted file.

    Args:
        text: the text.
        read: returns what a parsed text means.

    Returns:
        The result of `read`.

    Raises:
        ModelError: the text is malformed.
    """
    try:
        return read(ast.parse(text, mode="eval").body)
    except TvmTargetError:
        raise
    except _MALFORMED as error:
        raise ModelError(f"{shown(text)} is not a type or expression of Relax: {first_line(error)}") from error


def _dtype_constant(tvm: Any, name: str) -> Any:
    return tvm.ir.GenericConst(tvm.DataType(name), tvm.relax.AnyType())


def symbols_in(text: str) -> list[str]:
    """List the symbols in a type, an expression or a dimension.

    Args:
        text: its text.

    Returns:
        The symbols in order, each as often as it occurs.
    """
    names = (word for word in _WORD.findall(text) if word[0] not in "'_")
    return [name for name in names if name not in _RESERVED and name not in _KEYWORDS]


def rename_symbols(text: str, symbols: Mapping[str, str]) -> str:
    """Substitute dimensions for symbols in a type, an expression or a dimension.

    Args:
        text: its text.
        symbols: text of a dimension by symbol.

    Returns:
        The changed text; compound dimensions are put in parentheses.
    """
    if text in symbols:
        return symbols[text]

    def new(match: re.Match[str]) -> str:
        word = match[0]
        dim = symbols.get(word, word)
        return dim if dim.isidentifier() or dim.isdecimal() or dim == word else f"({dim})"

    return _WORD.sub(new, text)


def type_text(type_: Type) -> str:
    """Print a type of the IR in the syntax of Relax types.

    Args:
        type_: a type.

    Returns:
        Its text.

    Raises:
        ModelError: Relax has no such type.
    """
    match type_:
        case TensorType(dtype=dtype, shape=shape):
            if shape is None or None in shape:
                return f"Tensor(None, {tvm_dtype(dtype)!r}, ndim={-1 if shape is None else len(shape)})"
            return f"Tensor(({''.join(f'{dim}, ' for dim in shape).strip()}), {tvm_dtype(dtype)!r})"
        case OpaqueType(name=text):
            return text
        case None:
            return "Any()"
    raise ModelError(f"Relax has no type {type_}")


def tvm_dtype(name: str) -> str:
    """Return TVM's name of an element type.

    Args:
        name: name of the element type in the IR.

    Returns:
        TVM's name, such as `float8_e4m3fn`.
    """
    return numpy_dtype(name).name if name.startswith(("float8", "float4")) else name


def on_vdevice(text: str, index: int | None) -> str:
    """Put all tensors of a type on one virtual device.

    Args:
        text: text of the type.
        index: index of the virtual device; None for no device.

    Returns:
        The changed text.

    Raises:
        ModelError: the text is malformed.
    """
    if "Tensor(" not in text:
        return text

    def moved(tree: ast.expr) -> str:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Tensor":
                node.keywords = [key for key in node.keywords if key.arg != "vdevice"]
                node.keywords += [] if index is None else [ast.keyword("vdevice", ast.Constant(index))]
        return ast.unparse(tree)

    return read_text(text, moved)


def tuple_fields(text: str) -> tuple[str, ...]:
    """Return the texts of the field types of a tuple type.

    Args:
        text: text of the tuple type.

    Returns:
        Texts of the fields in order.

    Raises:
        ModelError: the text is malformed.
    """
    return read_text(text, lambda node: tuple(map(ast.unparse, _call(node)[1])))


def type_of(text: str) -> tuple[Type, str]:
    """Convert the text of a Relax type to a type of the IR.

    Args:
        text: text of the type.

    Returns:
        A tensor type, or an opaque type with this text; and the scope of its virtual device, or "".

    Raises:
        ModelError: the text is malformed.
    """
    return read_text(text, lambda node: _type_of(text, node))


def _type_of(text: str, node: ast.expr) -> tuple[Type, str]:
    name, args, keys = _call(node)
    dtype = dtype_name(str(_literal(args[1]))) if name == "Tensor" and _literal(args[1]) is not None else None
    if dtype is None:
        return OpaqueType(text), ""
    dims: tuple[int | str | None, ...] | None = None
    if isinstance(args[0], ast.Tuple):
        texts = [ast.unparse(dim) for dim in args[0].elts]
        dims = tuple(int(dim) if dim.isdecimal() else dim for dim in texts)
    elif keys.get("ndim", -1) >= 0:
        dims = (None,) * int(keys["ndim"])
    return TensorType(dtype, dims), f"vdevice:{keys['vdevice']}" if "vdevice" in keys else ""


def dtype_name(name: str) -> str | None:
    """Return the IR's name of a TVM element type.

    Args:
        name: TVM's name.

    Returns:
        A key of `DTYPES`; None if the IR has no such type.
    """
    plain = name.replace("_", "")
    plain = {"float4e2m1fn": "float4e2m1", "float8e8m0fnu": "float8e8m0"}.get(plain, plain)
    return plain if plain in DTYPES else None


def _call(node: ast.expr) -> tuple[str, list[ast.expr], dict[str, Any]]:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"{ast.unparse(node)!r} is unexpected")
    return node.func.id, node.args, {key.arg or "": _literal(key.value) for key in node.keywords}


def _items(node: ast.expr) -> list[ast.expr]:
    if not isinstance(node, ast.Tuple):
        raise ValueError(f"{ast.unparse(node)!r} should be in parentheses")
    return node.elts


def _literal(node: ast.expr) -> Any:
    return node.value if isinstance(node, ast.Constant) else ast.literal_eval(node) if not _is_tuple(node) else node


def _is_tuple(node: ast.expr) -> bool:
    return isinstance(node, ast.Tuple)
