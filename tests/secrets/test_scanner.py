"""The scanner finds each kind of secret in each form, and nothing where nothing is."""

import base64
import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest

from tests.secrets.planted import MARKS, PEOPLE, Kind, secrets_of
from tests.secrets.scan import findings

SECRETS = replace(secrets_of(), measured=frozenset({5.431862}))
ID, TEXT = PEOPLE[17].id, PEOPLE[17].texts[0]
TOKENS = SECRETS.tokens[100]
FORMS = {
    "plain": lambda said: said.encode(),
    "JSON": lambda said: json.dumps({"it": said.upper()}).encode(),
    "base64": lambda said: base64.b64encode(b"a" + said.encode()),
    "broken line": lambda said: f"{said[:4]}\n   {said[4:]}".encode(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", MARKS)
def test_a_mark_is_found_in_every_form(kind, form):
    said = {Kind.ID: ID, Kind.TEXT: TEXT}.get(kind, MARKS[kind])
    assert any(kind in one for one in findings(FORMS[form](said), SECRETS))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (json.dumps({"ids": TOKENS[2:9]}).encode(), Kind.TOKENS),
        (b"xyz" + np.array(TOKENS, "<i4").tobytes(), Kind.TOKENS),
        (b"x" + np.array(TOKENS, "<u2").tobytes(), Kind.TOKENS),
        (hashlib.sha256(ID.encode()).hexdigest()[:16].encode(), Kind.DIGEST),
        (b'{"records": 1009}', Kind.NUMBER),
        (b"of 1,009 records", Kind.NUMBER),
        (b"<td>1 009</td>", Kind.NUMBER),
        (b"loss 5.431862", Kind.NUMBER),
        (b'{"loss":5.4318620}', Kind.NUMBER),
        (b"\xff" + np.array([1, 5.431862], "<f4").tobytes(), Kind.NUMBER),
    ],
)
def test_other_secrets_are_found(data, kind):
    assert any(kind in one for one in findings(data, SECRETS))
    assert findings(data, SECRETS, allowed=frozenset(Kind)) == []


@pytest.mark.parametrize(
    "said",
    ["", "0.263", "1263 of 26.3", "5.4 1009.5", "w" * 99, "%41%42", 'x="25.431862" y="5.43191"'],
)
def test_what_is_no_secret_is_not_found(said):
    assert findings(said.encode(), SECRETS) == []
    assert findings(np.arange(4000, dtype="<i4").tobytes(), SECRETS) == []
