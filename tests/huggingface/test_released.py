"""What a trainer saves is what it released, and leaves with what it released."""

import pytest
import torch

import userdp
from tests.huggingface.toy import TEMPLATE, trainer
from userdp.claims.verify import verify
from userdp.claims.weights import digest_of

pytestmark = pytest.mark.slow


def test_invariant_13_what_is_saved_is_what_was_released(tmp_path):
    one, run = trainer(tmp_path), tmp_path / "out"
    one.train()
    released = digest_of(run / "model")
    with torch.no_grad():  # stands for training without privacy
        for parameter in one.model.parameters():
            parameter.add_(0.1)
    for place in (tmp_path / "final", run):
        one.save_model(str(place))
        assert digest_of(place) == released
        assert verify(place).problems == ()
    assert verify(run).problems == ()
    exported = userdp.export(run, out=tmp_path / "shared")
    assert exported["claim"].guarantee.epsilon == userdp.claim(run).guarantee.epsilon
    assert (tmp_path / "shared" / "chat_template.jinja").read_text() == TEMPLATE
    assert not [note for note in exported["notes"] if "template" in note]
    assert not (tmp_path / "shared" / "training_args.bin").exists()
    one.model.save_pretrained(run)
    assert verify(run).problems, "other weights beside the ledger are noticed"
