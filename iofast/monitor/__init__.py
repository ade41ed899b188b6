"""Is a training waiting for its data, why, and what to do: probe -> snapshot -> verdict -> render.

    snapshot, findings   plain data: what was seen, what was judged
    probe/               /proc, NVML, Python stacks, telemetry pages: each answers None for what it cannot see
    find, watching       which processes train; one job's snapshots, an interval at a time
    verdict, advice      judging: pure functions of snapshots, without a clock
    render/              screen, lines, JSON, HTML, Prometheus

Nothing here imports torch, and nothing is ever executed in a watched process.
"""
