"""The benchmarked models as Penstock programs; the baselines are in `benchmarks.baselines`."""
