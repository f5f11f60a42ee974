"""What passes leave behind."""

import gc
import weakref

from transformers import GPT2Config, GPT2LMHeadModel

from userdp.gradients import Units, causal_lm_loss, get_engine
from userdp.gradients.engines import batched, passes
from userdp.gradients.engines.tape import Tape


def test_nothing_of_a_pass_lies_beside_the_next_one(monkeypatch):
    """What layers keep is as large as their activations: two passes' would be the peak."""
    begun, alive = [], []

    class Watched(Tape):
        def __init__(self, *given, **options):
            alive.append([one for one in begun if one() is not None])
            begun.append(weakref.ref(self))
            super().__init__(*given, **options)

    monkeypatch.setattr(batched.Passes, "kind", Watched)
    monkeypatch.setattr(passes, "_CPU_TOKENS", 8)
    shape = GPT2Config(vocab_size=11, n_positions=8, n_embd=16, n_layer=1, n_head=2)
    units = Units.from_rows([[[1, 2, 3, 4]]] * 6)
    gc.disable()  # nor may it hang on a collection
    try:
        get_engine("auto")(
            GPT2LMHeadModel(shape).eval(), causal_lm_loss, units, l2_clip_norm=1.0, micro_batch=6
        )
    finally:
        gc.enable()
    assert len(alive) >= 3
    assert not any(alive)
