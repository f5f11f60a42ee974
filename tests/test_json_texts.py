"""What the strict reader of JSON refuses, and that it reads all else as Python does."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from userdp.core.codec import parse, text_of

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=30,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(VALUES, st.booleans(), st.sampled_from([None, 2]))
def test_what_is_written_is_read_as_it_was(value, escaped, indent):
    for text in (json.dumps(value, ensure_ascii=escaped), text_of(value, indent=indent)):
        assert parse(text) == parse(text.encode()) == value


REFUSED = {
    "a key twice": '{"a": {"b": 1, "b": 2}}',
    "NaN": "[NaN]",
    "too large": "1e999",
    "a number without end": "1" * 10_000,
    "no UTF-8": b'"\xff"',
    "two values": "1 2",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_json_or_would_do_harm_is_refused(what):
    with pytest.raises(ValueError, match=r".+") as told:
        parse(REFUSED[what])
    assert len(str(told.value)) < 300


def test_exact_losses_may_be_no_number():
    assert math.isnan(parse('{"loss": NaN}', finite=False)["loss"])
    assert parse("[1e999]", finite=False) == [math.inf]


@pytest.mark.parametrize("value", [math.nan, [math.inf]])
def test_nothing_is_written_that_would_be_refused_when_it_is_read(value):
    with pytest.raises(ValueError, match=r".+"):
        text_of(value)
    with pytest.raises(ValueError, match=r".+"):
        parse(json.dumps(value))
