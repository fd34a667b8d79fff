"""Parser of the text form of a module; `printer.py` prints it.

The grammar in EBNF (ISO 14977):

    module    = { "target" , target | "attr" , name , "=" , value } , { "func" , function } ;
    function  = "@" , name , "(" , [ typed , { "," , typed } ] , ")" ,
                [ "->" , "(" , [ type , { "," , type } ] , ")" ] , [ "captures" , "(" , [ uses ] , ")" ] ,
                [ "opsets" , "(" , name , "=" , version , { "," , name , "=" , version } , ")" ] ,
                [ "[" , constraint , "]" ] , [ "attrs" , map ] ,
                "{" , { constant } , { call } , "return" , [ uses ] , "}" ;
    constant  = "const" , dense ;
    dense     = "%" , name , ":" , type , "=" , ( list | "sha256:" , digits ) ;
    call      = ( "()" | typed , { "," , typed } ) , "=" , [ "@" ] , name , "(" , [ uses ] , ")" , [ map ] ,
                [ "[" , constraint , "]" ] , [ "effect" ] , [ "as" , name ] , { name , function } ;
    uses      = use , { "," , use } ;
    use       = "_" | "%" , name ;
    typed     = use , [ ":" , type ] , [ "in" , string ] ;
    type      = "?" | dtype , "[" , ( "..." | [ dim , { "," , dim } ] ) , "]" | "sequence" , "(" , type , ")" |
                "optional" , "(" , type , ")" | "map" , "(" , dtype , "," , type , ")" |
                "sparse" , "(" , type , ")" | "opaque" , "(" , string , ")" ;
    dim       = "?" | number | symbol | string ;
    value     = "none" | "true" | "false" | number | string | "b" , string | list | map | "dense" , dense |
                "opaque" , string , "b" , string ;
    list      = "[" , [ value , { "," , value } ] , "]" ;
    map       = "{" , [ name , "=" , value , { "," , name , "=" , value } ] , "}" ;

A name is a word or a JSON string. Targets and constraints have grammars of their own; a target ends with its line. A
"#" begins a comment. Types may be left out; types of results and captures are checked against the body. Large constants
are named by digest, and their elements are passed beside the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, TypeVar

import numpy as np

from tvmtarget.errors import ModelError, TargetError, TextError, UnknownNameError, did_you_mean
from tvmtarget.ir.function import Call, Constant, Function, Opaque, Value
from tvmtarget.ir.tensors import array_of_bytes, array_of_items, bytes_of, static_shape
from tvmtarget.ir.text.escaping import canonical_nan
from tvmtarget.ir.text.printer import DIGITS, MAX_DEPTH
from tvmtarget.ir.text.scanner import Scanner
from tvmtarget.ir.types import (
    DTYPES,
    Dim,
    MapType,
    OpaqueType,
    OptionalType,
    SequenceType,
    SparseType,
    TensorType,
    Type,
    dtype_of,
)
from tvmtarget.target.constraints.constraint import Constraint
from tvmtarget.target.tree import Target
from tvmtarget.untrusted import check_limit

__all__ = ["parse_functions", "parse_type", "read_attributes"]

_NUMBER = re.compile(r"-?(?:inf\b|nan\b|[0-9]+(?:\.[0-9]+)?(?:[eE][+\-]?[0-9]+)?)")
_INTEGER = re.compile(r"-?[0-9]+")
_DIGEST = re.compile(rf"sha256:[0-9a-f]{{{DIGITS},64}}")
_LINE = re.compile(r"[^\n]*")
_HEX = re.compile(r'b"([0-9a-f]*)"')
_MAX_NUMBER = 400  # characters; a finite float written without an exponent has about 330

_T = TypeVar("_T")


def parse_functions(
    text: str, constants: Mapping[str, np.ndarray[Any, Any]]
) -> tuple[tuple[Function, ...], Target | None, dict[str, object]]:
    """Parse the text form of a module.

    Args:
        text: the text.
        constants: arrays by SHA-256 digest, for constants that the text names by digest.

    Returns:
        Functions, target and attributes; not yet verified.

    Raises:
        TextError: a syntax error, with line and column.
    """
    check_limit("text-bytes", len(text), "the text of a module", TextError)
    return _Parser(text, constants).module()


def parse_type(text: str) -> Type:
    """Parse a type.

    Args:
        text: text of the type, such as `float32[n,3]`; "?" is an unknown type.

    Returns:
        The type; None if unknown.

    Raises:
        TextError: a syntax error.
    """
    parser = _Parser(text, {})
    found = parser.type(0)
    parser.end()
    return found


def read_attributes(scanner: Scanner) -> dict[str, object]:
    """Read attributes in braces within the text of another grammar.

    Args:
        scanner: scanner at the opening brace; it is moved behind the closing one.

    Returns:
        Values by name.

    Raises:
        TextError: a syntax error.
    """
    parser = _Parser(scanner.text, {})
    parser.at = scanner.at
    found = parser.map(0)
    scanner.at = parser.at
    return found


class _Parser(Scanner):
    """A recursive descent parser with a method for each rule of the grammar."""

    def __init__(self, text: str, constants: Mapping[str, np.ndarray[Any, Any]]) -> None:
        super().__init__(text)
        self.constants = constants
        # The printer shortens digests, so that constants are found by the digits that it prints.
        self.by_prefix = {digest[:DIGITS]: digest for digest in constants}

    def module(self) -> tuple[tuple[Function, ...], Target | None, dict[str, object]]:
        target: Target | None = None
        attrs: dict[str, object] = {}
        functions: list[Function] = []
        while self.peek():
            start = self.at
            word = self.word("'target', 'attr' or 'func'")
            if word == "func":
                functions.append(self.function(0))
            elif functions or word not in ("target", "attr"):
                raise self.error(f"expected target, attr (before all functions) or func, not {word!r}", start)
            elif word == "attr":
                self.pair(attrs, 0)
            elif target is not None:
                raise self.error("a module has one target", start)
            else:
                self.skip_blanks()
                target = self.foreign(Target.parse, *self.span(_LINE))
        return tuple(functions), target, attrs

    def function(self, depth: int) -> Function:
        if depth > MAX_DEPTH:
            raise self.error(f"functions are nested deeper than {MAX_DEPTH} levels")
        self.expect("@", "'@' and the name of a function")
        name = self.name("the name of a function")
        params = self.several(self.typed, "()", "parameters")
        self.skip()
        at_types = self.at
        types = self.several(lambda: self.type(0), "()", "types of results") if self.accept("->") else None
        at_captures = self.at
        captures = self.several(self.use, "()", "captures") if self.accept_word("captures") else None
        opsets = self.several(self.opset, "()", "opsets") if self.accept_word("opsets") else ()
        constraint = self.constraint()
        attrs = tuple(self.map(0).items()) if self.accept_word("attrs") else ()
        self.expect("{", "'{' and the body of a function")
        constants: list[Constant] = []
        while self.accept_word("const"):
            constants.append(self.dense())
        body: list[Call] = []
        while not self.accept_word("return"):
            body.append(self.call(depth))
        results = () if self.peek() == "}" else self.listed(self.use)
        self.expect("}", "'}' at the end of the function")
        function = Function(name, params, tuple(body), results, tuple(constants), constraint, opsets, attrs)
        # Printed types of results are redundant; a mismatch shows that the text was edited inconsistently.
        found = tuple(function.types.get(result) for result in results)
        if types is not None and types != found:
            shown = ", ".join(str(type_ or "?") for type_ in found)
            raise self.error(f"function {name!r} returns ({shown}), which is not what '->' says", at_types)
        if captures is not None and set(captures) != set(function.captures()):
            raise self.error(
                f"region {name!r} reads {', '.join(function.captures()) or 'nothing'} from outside", at_captures
            )
        return function

    def opset(self) -> tuple[str, int]:
        domain = "" if self.accept_word("onnx") else self.name("the domain of an operator set")
        self.expect("=", "'=' and a version")
        return domain, self.integer("a version")

    def call(self, depth: int) -> Call:
        outputs = () if self.accept("()") else self.listed(self.typed)
        self.expect("=", "'=' and an operator")
        mark = "@" if self.accept("@") else ""
        op = mark + self.name("an operator")
        inputs = self.several(self.use, "()", "operands")
        attrs: Any = tuple(self.map(0).items()) if self.peek() == "{" else ()
        constraint = self.constraint()
        has_effect = self.accept_word("effect")
        source = self.name("the name of the operation") if self.accept_word("as") else ""
        regions: list[tuple[str, Function]] = []
        # Only a region begins with any other name: calls begin with results, and the function ends with `return`.
        while self.peek() not in ("%", "(", "}", "") and not self.sees_word("_", "return"):
            regions.append((self.name("a region, a call or 'return'"), self.function(depth + 1)))
        return Call(op, inputs, outputs, attrs, tuple(regions), constraint, source, has_effect)

    def use(self) -> str:
        if self.accept("%"):
            return self.name("the name of a value")
        if self.accept_word("_"):
            return ""
        raise self.error(f"expected '%' and the name of a value{self.found()}")

    def typed(self) -> Value:
        name = self.use()
        type_ = self.type(0) if self.accept(":") else None
        return Value(name, type_, self.string("a memory in quotes") if self.accept_word("in") else "")

    def dense(self) -> Constant:
        self.expect("%", "'%' and the name of a constant")
        name = self.name("the name of a constant")
        self.expect(":", "':' and the type of the constant")
        self.skip()
        start = self.at
        type_ = self.type(0)
        if not isinstance(type_, TensorType):
            raise self.error("a constant is a tensor", start)
        self.expect("=", "'=' and the elements of the constant")
        self.skip()
        start = self.at
        try:
            static_shape(type_)
            if self.peek() == "[":
                return Constant(
                    name, type_, array_of_items(type_, self.several(lambda: self.value(0), "[]", "elements"))
                )
        except ModelError as error:
            raise self.error(error.problems[0], start) from error
        return Constant(name, type_, self.digest(name, type_))

    def digest(self, name: str, type_: TensorType) -> np.ndarray[Any, Any]:
        """Read a digest and return the array that has it."""
        start = self.at
        found = self.match(_DIGEST)
        if found is None:
            raise self.error(f"expected a list of elements, or sha256: and at least {DIGITS} digits{self.found()}")
        digest = self.by_prefix.get(found[7 : 7 + DIGITS], "")
        if not digest.startswith(found[7:]) or not digest:
            raise self.error(
                f"no constant with the digest of {name!r} is given; give the constants of the module", start
            )
        array = self.constants[digest]
        if array.shape == type_.shape and dtype_of(array.dtype) == type_.dtype:
            return array
        try:
            # A digest covers bytes only: an array of another type can have it, such as the plain bytes of an archive.
            return array_of_bytes(type_, bytes_of(array))
        except ModelError as error:
            raise self.error(f"constant {name!r}: {error.problems[0]}", start) from error

    def constraint(self) -> Constraint | None:
        if self.peek() != "[":
            return None
        return self.foreign(Constraint.parse, *self.enclosed())

    def foreign(self, parse: Callable[[str], _T], text: str, start: int) -> _T:
        """Parse a part of the text in another grammar; positions of errors are those in the whole text."""
        try:
            return parse(text)
        except TextError as error:
            # An error in a text that the other grammar derived has no position in this one.
            raise self.error(error.problems[0], start + (error.column if error.text == text else 0)) from error
        except (TargetError, UnknownNameError) as error:
            raise self.error("; ".join(error.problems), start) from error

    def type(self, depth: int) -> Type:
        if depth > MAX_DEPTH:
            raise self.error(f"types are nested deeper than {MAX_DEPTH} levels")
        if self.accept("?"):
            return None
        start = self.at
        word = self.word("a type")
        if word in DTYPES:
            return TensorType(word, self.shape())
        if word not in _NESTED:
            raise self.error(f"unknown type {word!r}{did_you_mean(word, (*DTYPES, *_NESTED))}", start)
        self.expect("(", f"'(' after {word!r}")
        match word:
            case "sequence":
                found: Type = SequenceType(self.type(depth + 1))
            case "optional":
                found = OptionalType(self.type(depth + 1))
            case "map":
                key = self.dtype()
                self.expect(",", "',' and the type of the map's values")
                found = MapType(key, self.type(depth + 1))
            case "sparse":
                found = SparseType(TensorType(self.dtype(), self.shape()))
            case _:
                found = OpaqueType(self.string("the name of a type in quotes"))
        self.expect(")", "')' at the end of the type")
        return found

    def dtype(self) -> str:
        self.skip()
        start = self.at
        word = self.word("an element type")
        if word not in DTYPES:
            raise self.error(f"unknown element type {word!r}{did_you_mean(word, DTYPES)}", start)
        return word

    def shape(self) -> tuple[Dim, ...] | None:
        if self.accept("[...]"):
            return None
        return self.several(self.dim, "[]", "dimensions")

    def dim(self) -> Dim:
        if self.accept("?"):
            return None
        if self.peek() == '"':
            return self.string("a symbol")
        # Symbols cannot begin with a digit or a sign, so that one look decides.
        return self.integer() if _INTEGER.match(self.text, self.at) else self.symbol()

    def map(self, depth: int) -> dict[str, object]:
        found: dict[str, object] = {}
        self.several(lambda: self.pair(found, depth), "{}", "attributes")
        return found

    def pair(self, into: dict[str, object], depth: int) -> None:
        self.skip()
        start = self.at
        name = self.name("the name of an attribute")
        if name in into:
            raise self.error(f"attribute {name!r} is given twice", start)
        self.expect("=", f"'=' and the value of {name!r}")
        into[name] = self.value(depth)

    def value(self, depth: int) -> object:
        if depth > MAX_DEPTH:
            raise self.error(f"values are nested deeper than {MAX_DEPTH} levels")
        match self.peek():
            case '"':
                return self.string("a text")
            case "[":
                return self.several(lambda: self.value(depth + 1), "[]", "values")
            case "{":
                return self.map(depth + 1)
        hexadecimal = self.match(_HEX)
        if hexadecimal is not None:
            return self.bytes_of(hexadecimal)
        number = self.match(_NUMBER)
        if number is not None:
            return self.number(number)
        start = self.at
        word = self.word("a value")
        if word in _WORDS:
            return _WORDS[word]
        if word == "dense":
            return self.dense()
        if word == "opaque":
            kind = self.string("the kind of the attribute in quotes")
            hexadecimal = self.match(_HEX)
            if hexadecimal is None:
                raise self.error(f'expected bytes as b"00ff"{self.found()}')
            return Opaque(kind, self.bytes_of(hexadecimal))
        raise self.error(f"expected a value, not {word!r}; strings are in quotes", start)

    def bytes_of(self, text: str) -> bytes:
        # b and two quotes are three characters, so that an even length means an odd number of digits.
        if len(text) % 2 == 0:
            raise self.error("bytes have two digits each", self.at - len(text))
        return bytes.fromhex(text[2:-1])

    def number(self, text: str) -> int | float:
        if len(text) > _MAX_NUMBER:
            raise self.error(f"expected a number of at most {_MAX_NUMBER} characters", self.at - len(text))
        value = int(text) if _INTEGER.fullmatch(text) else canonical_nan(float(text))
        if value in (inf, -inf) and not text.endswith("inf"):
            raise self.error(f"{text} is beyond the numbers of float64; write inf", self.at - len(text))
        return value

    def integer(self, what: str = "a number") -> int:
        number = self.match(_INTEGER)
        if number is None:
            raise self.error(f"expected {what}{self.found()}")
        return int(self.number(number))


_NESTED = ("map", "opaque", "optional", "sequence", "sparse")
_WORDS: dict[str, object] = {"none": None, "true": True, "false": False}
