"""The monitor beside other tools that say whether training waits for its data: the same run, judged by both.

programs   which programs there are, and what of the simulated device a tool on the host's clock can see
train      the training process, in the loop that every framework has: a script, because the tools start scripts
tools      TraceML and gpuprof, each taken into that loop as its documentation says, and what they said
side       running a program under one of them while `iofast monitor` watches from outside; what came of it
"""
