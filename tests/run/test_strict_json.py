"""JSON that two readers could understand differently, or that breaks a reader, is refused in one
sentence."""

import json

import pytest

from lastiterate import limits
from lastiterate.errors import InputError
from lastiterate.run import serialization


@pytest.mark.parametrize(
    "text, word",
    [
        ('{"epsilon": 0.01, "epsilon": 1.0}', "every key once"),
        ('{"run": {"n": 1, "\\u006e": 2}}', "every key once"),
        ('{"a": NaN}', "finite numbers"),
        ("[Infinity]", "finite numbers"),
        ("[-Infinity]", "finite numbers"),
        ("[1e400]", "finite numbers"),
        ("[" + "9" * 400 + "]", "2\\^63"),
        ("[-" + "9" * 19 + "9]", "2\\^63"),
        ("[" * 10_000 + "]" * 10_000, "nest"),
        ('{"a":' * 200 + "1" + "}" * 200, "nest"),
        ("[" * 10_000, "nest"),
        ('["\\ud800"]', "UTF-8"),
        (b"\xff\xfe[1]", "UTF-8"),
        ("", "complete JSON"),
        ('{"a": 1} x', "complete JSON"),
        ("[1,]", "complete JSON"),
    ],
    ids=range(16),
)
def test_refused(text, word):
    with pytest.raises(InputError, match=word) as caught:
        serialization.loads(text, "certificate")
    assert str(caught.value).startswith("certificate ") and "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_what_json_writes_is_read_back():
    for value in (
        {"a": [1, 2.5, -3e-300, True, None, 'ü \U0001f600 [[[ \\ " '], "b": {}},
        [2**63, -(2**63)],
        "text",
    ):
        for text in (
            json.dumps(value),
            json.dumps(value, ensure_ascii=False),
            json.dumps(value).encode(),
        ):
            assert serialization.loads(text, "x") == value
    deep = "[" * limits.NESTING + "]" * limits.NESTING
    assert serialization.loads(deep, "x") == json.loads(deep)
    assert serialization.loads('"' + "[" * 100 + '"', "x") == "[" * 100, (
        "brackets in a text nest nothing"
    )


def test_files(tmp_path):
    (tmp_path / "a.json").write_text('{"a": 1}')
    (tmp_path / "b.json").write_text("[1]")
    assert serialization.read(tmp_path / "a.json", "x") == {"a": 1}
    for name, word in (("b.json", "JSON object"), ("none.json", "existing"), ("", "readable")):
        with pytest.raises(InputError, match=word):
            serialization.read(tmp_path / name, "x")
