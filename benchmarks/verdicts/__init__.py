"""Small training programs, each with one known bottleneck and a known stall.

programs               the programs, and the verdicts that are right for them
device, host           a device simulated by a process of its own; the calls of the training process
timed_datasets, loaders, feeders    datasets of known cost, the loaders round them, and loaders of a program's own
program                the training process
truth                  the true stall, from the recorded timelines
judge, program_runs    a watching monitor; running the programs
score, predictions     verdicts beside what is right; predictions beside what the change really brought
"""
