"""Time a private step against an ordinary one, and against Opacus.

    python -m benchmarks.step [--quick] [--json] [--clock cpu] [--allocator keep] [--only KEY ...]

GPT-2 style decoders (T = 128, vocabulary 8192, float32), 64 sequences in units of G. The base of
every ratio is the ordinary forward and backward pass over the same 64 sequences in one batch;
``plain in parts`` is the same in passes of 8, to tell what smaller passes alone are worth, and
``plain compiled``, ``plain compiled blocks`` and ``plain compiled loss`` (model and loss), which
run where ``--methods`` names them, are that under inductor, which needs a C++ compiler. Methods
run interleaved, one round after another; a ratio is the median over rounds of time / time of the
same round's base, with a bootstrap 90% interval. Peak memory is that of a fresh process per method,
above what it holds after its imports. ``--clock cpu`` takes the processor time of all threads: for
machines that others use as well. ``--allocator keep`` tells glibc to keep freed memory, which takes
the page faults of large buffers out of all methods alike.

Opacus (``pip install --no-deps opacus opt_einsum``: it would move torch) gets the same model with
Linear in place of Conv1D and an output layer of its own: it supports neither Conv1D nor tied
tensors. fastDP and jax_privacy are not run here: the one needs a
checkout, the other is for JAX models; their rows say so.

The key ``full_step`` stands for `benchmarks.full_step`: a whole private step beside its clipping
alone; ``--quick`` leaves it out unless it is named.
"""
