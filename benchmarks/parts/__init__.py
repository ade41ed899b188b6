"""Parts of the benchmarks: each function gets a `measure.Bench`, measures, and publishes one page."""
