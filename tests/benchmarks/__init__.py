"""How fast, how light, how late: measured on real servers, printed, and never asserted in a timed test.

`python -m tests.benchmarks --help`. A machine's speed is its own: what counts are ratios within one run, to readers
that do nothing but read, and to a relay that polls.
"""
