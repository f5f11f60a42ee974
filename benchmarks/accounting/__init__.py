"""Time this accountant against dp-accounting, and alone over random settings.

    python -m benchmarks.accounting [--quick] [--json] [--settings N] [--results FILE.jsonl]

Three parts, each reported on its own:

1. ε by both, on the table of six settings and on 30 seeded random settings. dp-accounting runs with
   its defaults, one process for each call, capped at 120 s and 8 GB of address space. A capped
   call counts with what it used until then, so its speed-up is a lower bound; a call that fails
   counts in no ratio.
   Where dp-accounting answers, our lower δ at its ε must not exceed δ + 1e-13 (its FFT round-off);
   where it does, our bracket must meet the one that is proven by ball arithmetic.
2. Calibration of σ by both, on a sample of the table.
3. Ours alone on 300 random settings (T <= 1e6, 1e-6 <= p <= 1, 0.3 <= σ <= 100, G <= 512,
   1e-12 <= δ <= 1e-3, all log-uniform): times, and the peak memory above that after import.

Apart from these, ``python -m benchmarks.accounting prove`` encloses δ by ball arithmetic; see
`benchmarks.accounting.prove`.

Times are processor seconds of the first call for a setting in a warm process, imports excluded
(both libraries run on one thread; wall time would count the machine's other work). A call that
was capped counts with the processor time it had used. With ``--results``
every measurement is appended as it comes and never repeated (except our own failures), so take a
new file, or drop the lines of "ours", when the code has changed. Tables and progress go to stderr,
``--json`` prints one object on stdout.

Two campaigns beside it have help of their own: ``python -m benchmarks.accounting lines --help``
(losses on a wrong branch) and ``corners --help`` (random settings from the whole accepted range).
"""
