"""The parts of bench_gpu.py. Each runs in a process of its own, and writes down every figure as soon as it has it."""
