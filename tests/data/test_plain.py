"""Values out of JSON are checked against types, and what is wrong is named."""

from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

import pytest

from symbayes.data.storage import check_form, read_json


@dataclass
class Inner:
    count: int
    names: list[str] = field(default_factory=list)


class Outer(TypedDict):
    inner: Inner | None
    kind: Literal["a", "b"]
    shares: NotRequired[dict[str, float]]
    any: NotRequired[Any]


@pytest.mark.parametrize(
    "value",
    [
        {"inner": None, "kind": "a"},
        {"inner": {"count": 1}, "kind": "b", "shares": {"x": 1, "y": 0.5, "z": float("nan")}, "any": [1, None]},
        {"inner": {"count": -1, "names": ["x"], "more": 1}, "kind": "b", "more": 1},
    ],
)
def test_what_has_the_form_is_let_pass(value):
    check_form(value, Outer, "it")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "it must be a dictionary, got a list"),
        ({"kind": "a"}, "it must have inner"),
        ({"inner": {}, "kind": "a"}, "it.inner must have count"),
        ({"inner": 3, "kind": "a"}, "it.inner must be a dictionary, got a whole number"),
        ({"inner": {"count": 1.0}, "kind": "a"}, "it.inner.count must be a whole number, got a number"),
        ({"inner": {"count": True}, "kind": "a"}, "it.inner.count must be a whole number, got true or false"),
        ({"inner": {"count": 2**63}, "kind": "a"}, "it.inner.count must be a whole number, got"),
        ({"inner": {"count": 1, "names": ["x", None]}, "kind": "a"}, r"it.inner.names\[1\] must be text, got null"),
        ({"inner": None, "kind": "c"}, "it.kind must be 'a' or 'b', got text"),
        ({"inner": None, "kind": ["a"]}, "it.kind must be 'a' or 'b', got a list"),
        ({"inner": None, "kind": "a", "shares": {"x": "1"}}, "it.shares.x must be a number, got text"),
        ({"inner": None, "kind": "a", "shares": {"x": 10**400}}, "it.shares.x must be a number, got a whole number"),
    ],
)
def test_what_has_not_is_named(value, message):
    with pytest.raises(ValueError, match=message):
        check_form(value, Outer, "it")


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 10**5, b"\xff", b"1" * 10**4])
def test_what_is_no_json_is_refused(content, tmp_path):
    (tmp_path / "file.json").write_bytes(content)
    for lines in (False, True):
        if content or not lines:
            with pytest.raises(ValueError, match=r"file.json must be JSON: "):
                read_json(tmp_path / "file.json", lines)
