"""What a trainer released is exported like any other run, with its chat template."""

import pytest

import userdp
from tests.huggingface.toy import TEMPLATE, trainer
from userdp.claims.verify import verify_run

pytestmark = pytest.mark.slow  # a trainer takes seconds to load


def test_a_trainers_run_leaves_with_the_template_that_it_released(tmp_path):
    used = trainer(tmp_path)
    used.train()
    run = tmp_path / "out"
    assert verify_run(run).problems == ()
    exported = userdp.export(run, out=tmp_path / "shared")
    assert exported.claim.guarantee.epsilon == userdp.claim(run).guarantee.epsilon
    assert (tmp_path / "shared" / "chat_template.jinja").read_text() == TEMPLATE
    assert not [note for note in exported.notes if "template" in note]
    assert not (tmp_path / "shared" / "training_args.bin").exists()
