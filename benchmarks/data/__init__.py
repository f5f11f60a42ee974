"""Time the data pipeline: records to store, and store to cohorts.

    python -m benchmarks.data [--quick] [--json] [--millions 1 3 10 30] [--parts PART ...]

Parts, each reported on its own:

``scale``   A generated corpus with Stack Overflow's shape at 1, 3, 10 and 30 M records: users as a
            log-normal with the median of 183 and the mean of 397 examples of Charles et al. 2024,
            Table 1, at most 194,200; texts of real words, log-normal in length, at most 128
            tokens. Each size runs in a process of its own: peak RSS, wall seconds, and busy
            seconds per stage: reading, tokenizing, sorting, fetching (records by user), cutting
            and splitting, writing (with the content hash), finishing (checksums and sync). A block
            is tokenized in one thread while another reads the next one, so the stages add up to
            more than the wall. One line through the sizes
            extrapolates to 135.8 M.
``spark``   The same corpus prepared by DuckDB, by Spark on two cores and by Spark on one, in turn,
            for ``--rounds`` rounds: wall seconds, processor seconds of all processes together
            (Java's and those of Python's workers too), and the peak memory of the driver's process
            and of Java's. Medians of ratios within a round. Only if it is named: it takes long.
``grouper`` Records by user, against Dataset Grouper and bare Apache Beam: `grouper`.
``gather``  A cohort of 4,096 users x 64 examples of 128 tokens: `StoreSplit.gather` against
            ``numpy.take`` of the same tokens with the index already built; warm, and cold (the
            store's pages dropped first) apart.
``draw``    One Poisson cohort drawn and gathered at 1e5, 1e6 and 1e7 examples (expected size the
            same), and drawn and looked up in the index alone at 1e8. Each is gathered twice: the
            first time finds its pages in memory but perhaps not in the process's page table
            (page faults, at most a few per row whatever the store's size), the second time does.
``flat``    RSS over 10,000 steps of draw and gather worked `ahead`.

Wall seconds of a noisy machine: each timing is the least of several, ratios are taken between
neighbouring runs. ``--quick`` ends within 50 s on two cores: small sizes, no Beam unless named.
Tables and progress go to stderr, ``--json`` prints one object on stdout.
"""
