"""The monitor beside other tools that find out whether training waits for its data: both judge the same run.

programs   the programs, and what a tool on the host's clock can see of the simulated device
train      the training process, with the loop that every framework has: a script, because the tools start scripts
tools      TraceML and gpuprof in that loop, as in their documentation, and their verdicts
side       running a program under one of them while `iofast monitor` watches from outside
"""
