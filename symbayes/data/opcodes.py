"""The Python version of CIFAR-10, read by its opcodes: nothing is imported or called, as unpickling would.

All there can be are numbers, text, lists, tuples and dictionaries. What would make an array is known by its form, that of bytes
in rows alone, and keeps its content as text; anything else is refused.
"""

import pickletools
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Opcodes of a file at most; a batch has some 100 000 if all its text is encoded.
_MOST = 200_000
#: What may be named, wherever numpy keeps it; names stand for themselves.
_NAMES = {"_codecs encode", "numpy ndarray", "numpy dtype"}
_NAMES |= {f"numpy.{core}.{name}" for core in ("core", "_core") for name in ("multiarray _reconstruct", "numeric _frombuffer")}
#: The type of an array.
_BYTE = "uint8"
_OTHER = "arrays must be of bytes, in the form that numpy gives them; it has others."


@dataclass(eq=False)
class _Pixels:
    """An array of bytes, which may be still to be filled; a letter of its text for each."""

    shape: Any = None
    text: Any = None
    by_columns: bool = False


def read_batch(raw: bytes, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels [rows] and pixels [rows, columns] of a batch, both bytes.

    Raises:
        ValueError: If it is anything else; without the name of the file.
    """
    try:
        found = _described(raw)
    except (LookupError, TypeError, Warning) as error:  # of text that is escaped wrongly, where warnings are errors
        raise ValueError(f"it is damaged ({error}).") from error
    labels, pixels = (found.get(name) if isinstance(found, dict) else None for name in ("labels", "data"))
    if not isinstance(labels, list) or not isinstance(pixels, _Pixels) or not isinstance(pixels.text, str):
        raise ValueError("its labels must be a list, and its data an array.")
    if len(labels) != rows or pixels.shape != (rows, columns) or len(pixels.text) != rows * columns:
        sizes = f"{len(labels)} and {len(pixels.text)} in all"
        raise ValueError(f"there must be {rows} labels and as many rows of {columns} pixels, got {sizes}.")
    if any(type(label) is not int or not 0 <= label <= 255 for label in labels):
        raise ValueError("its labels must be numbers from 0 to 9.")
    body = np.frombuffer(pixels.text.encode("latin-1"), dtype=np.uint8)
    return np.array(labels, dtype=np.uint8), body.reshape((rows, columns), order="F" if pixels.by_columns else "C")


def _described(raw: bytes) -> Any:
    """What a file describes, by a machine that knows no more than it takes."""
    stack: list[Any] = []
    below: list[list[Any]] = []
    memo: dict[int, Any] = {}
    argument: Any
    for index, (opcode, argument, _) in enumerate(pickletools.genops(raw)):
        if index == _MOST:
            raise ValueError(f"it must have at most {_MOST} opcodes; it has more.")
        match opcode.name:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NEWTRUE": True, "NEWFALSE": False}.get(opcode.name, argument))
            case "SHORT_BINSTRING" | "BINSTRING" | "SHORT_BINUNICODE" | "BINUNICODE" | "BINUNICODE8":
                stack.append(argument)
            case "SHORT_BINBYTES" | "BINBYTES" | "BINBYTES8" | "BYTEARRAY8":
                stack.append(argument.decode("latin-1"))
            case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE":
                stack.append({"DICT": dict, "LIST": list, "TUPLE": tuple}[opcode.name[6:]]())
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                memo[len(memo) if argument is None else argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL":
                stack.append(_named(argument))
            case "STACK_GLOBAL":
                stack.append(_named(" ".join(_popped(stack, 2))))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(_popped(stack, int(opcode.name[5:]))))
            case "MARK":
                below.append(stack)
                stack = []
            case "TUPLE":
                parts, stack = stack, below.pop()
                stack.append(tuple(parts))
            case "APPENDS" | "SETITEMS":
                parts, stack = stack, below.pop()
                _fill(stack[-1], parts)
            case "APPEND" | "SETITEM":
                parts = _popped(stack, 1 if opcode.name == "APPEND" else 2)
                _fill(stack[-1], parts)
            case "REDUCE":
                stack.append(_called(*_popped(stack, 2)))
            case "BUILD":
                state = stack.pop()
                _build(stack[-1], state)
            case name:
                raise ValueError(f"the opcode {name} has no place in it.")
    return stack[-1]


def _popped(stack: list[Any], count: int) -> list[Any]:
    return [stack.pop() for _ in range(count)][::-1]


def _named(name: str) -> str:
    if name not in _NAMES:
        raise ValueError(f"{name[:80].replace(' ', '.')} is not among the things that are read from it.")
    return name


def _fill(made: Any, parts: list[Any]) -> None:
    if isinstance(made, list):
        made += parts
    elif isinstance(made, dict) and all(isinstance(key, str) for key in parts[::2]):  # others may take for ever to hash
        made.update(zip(parts[::2], parts[1::2], strict=True))
    else:
        raise TypeError("there is no list or dictionary to fill, or a key is no name")


def _called(function: Any, arguments: Any) -> Any:
    """What calling one of the names would give: text, a type or an array."""
    match function, arguments:
        case "_codecs encode", (str(text), "latin1"):
            return text
        case "numpy dtype", ("u1", 0, 1):
            return _BYTE
        case "numpy.core.multiarray _reconstruct" | "numpy._core.multiarray _reconstruct", ("numpy ndarray", (0,), "b"):
            return _Pixels()
        case "numpy.core.numeric _frombuffer" | "numpy._core.numeric _frombuffer", (text, "uint8", shape, "C" | "F" as order):
            return _Pixels(shape, text, order == "F")
    raise ValueError(_OTHER)


def _build(made: Any, state: Any) -> None:
    """Fill an array that is empty so far, or say more of a type."""
    match made, state:
        case "uint8", (3, "|", None, None, None, -1, -1, 0):
            pass
        case _Pixels(), (1, shape, "uint8", 0 | 1 as by_columns, text):
            made.shape, made.text, made.by_columns = shape, text, bool(by_columns)
        case _:
            raise ValueError(_OTHER)
