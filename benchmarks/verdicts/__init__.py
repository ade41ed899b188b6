"""The labelled suite: small training programs, each with one known bottleneck and a known stall.

shared, device, host   a device simulated by a process of its own; the calls of the training process
programs               the programs, and the verdicts that are right for them
data, store, loaders   datasets of known cost, and the loaders round them
feeders, others        loaders of a program's own; waits for anything but a batch
program                the training process: `python -m benchmarks.verdicts.program NAME`
truth                  the true stall, from the recorded timelines
judge, suite, score    a watching monitor; running all programs; the results
kept                   observations as JSON
"""
