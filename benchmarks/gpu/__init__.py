"""Everything that wants a GPU, in calls of at most 8 minutes.

    python -m benchmarks.gpu --out docs/results/gpu.json [--seconds 450] [--again] [--only PART ...]
    python -m benchmarks.gpu --out gpu.json --device cpu --tiny      # the same code, in seconds

Each part has a share of the time, and its result is written as it comes. A second call does what
is left: parts that failed, for which no time was left, or that left some of their rows out.
``--again`` forgets what the file holds.

Needs torch, transformers, numpy, scipy and pyarrow; peft for the LoRA parts. Opacus is used where
it can be imported, and its absence is written into the result (1.6, installed with ``pip install
--no-deps --target FOLDER opacus``, since it would move torch); what is on ``PYTHONPATH`` is kept,
so that it may lie in a folder.
Weights are random or the bundled model's, data are random tokens or our own source: no download.

``exact_float32``, ``exact_bfloat16``  `exactness`: every engine on small models, also compiled.
``decoder_g1`` ... ``decoder_g64``  `ratios`: the 350 M decoder of Charles et al. 2024.
``lora_gpt2`` ... ``lora_gpt2-large``  `ratios`: the sizes of Chua et al. 2024, Table 12.
``sharded_g1``, ``sharded_g4``  `ratios`: the two-pass engine beside the ordinary pass, FSDP2.
``k_users``, ``k_gradients``  `by_k`: cost against examples per user; Chua et al. 2024, Figure 6.
``memory_batch``, ``memory_model``  `memory`: the largest that fit, ours beside Opacus's ghost clip.
``compiled``  `compiled`: what torch.compile is worth to either side.
``training``  `training`: ``userdp train`` on this device, and its ledgers.
``commands``  `commands`: every other command on this device and on the CPU, side by side.
``reads``  `reads`: how often an engine waits for the device, per layer.
``products``, ``forms``, ``passes``  `tuning`: what the engines' constants should be on this device.
``noise``  `noise`: 350 M numbers of noise, the law of what the device draws, the lattice attack.

A ratio is the median over interleaved rounds of a method's time over that of the ordinary forward
and backward pass over the same sequences in passes of the same size. Peak memory is the device
allocator's, above what the model holds.
"""
