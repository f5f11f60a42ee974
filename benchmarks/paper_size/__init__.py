"""The price of privacy at the size of the papers' models, on a CPU.

    python -m benchmarks.paper_size [--only KEY ...] [--rounds N] [--page PAGE]

The decoder of Charles et al. 2024 (24 layers, d = 1024, vocabulary 50,257, T = 128; 353 M
parameters) with 32 sequences in units of 1, 4 and 16; GPT-2 small, medium and large under LoRA of
rank 32, as in Chua et al. 2024, Table 12; a Llama of 1.2 G parameters under the same LoRA. Beside
them others, for predictions to be held against (docs/cost.md). Float32, weights and tokens at
random, full sequences.

**Time.** A round takes one private gradient (forward, backward, clip, sum) and one ordinary
gradient over the same sequences *in passes of the same sequences*, in turns; processor time of one
thread. The ratio is the median over rounds, with a bootstrap 90% interval (which says little of
two rounds). Noise and the optimizer's update are in neither.

**Memory.** The peak of a process that takes one gradient of either kind, above what it holds after
its imports. glibc is told to return freed memory at once: as it is set by default, it keeps so much
that GPT-2 small's plain gradient took 4.4 GB, of which it needs 2.2.

Each round and each peak is a line of the results, so that a run that was stopped goes on. Opacus
(``pip install --no-deps opacus opt_einsum``) is timed beside the decoder at G = 1 where it is
installed and fits.
"""
