"""The labelled suite: small training programs with one known bottleneck and a known stall each, and what they prove.

shared, device, host   a device that is simulated in a process of its own; what the training process calls
programs               which programs there are, and the verdicts that are right for them
data, store, loaders   datasets of known cost, and the loaders round them
feeders, others        loaders of a program's own; what a program waits for that is no batch
program                the training process: `python -m benchmarks.verdicts.program NAME`
truth                  the stall that there was, from the recorded timelines
judge, suite, score    a monitor watches; running them all; what came of it
kept                   what was seen, as JSON
"""
