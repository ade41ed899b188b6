"""Views of the monitor's results, each a function of a `Moment`: the live screen, lines, JSON, a page, Prometheus."""
