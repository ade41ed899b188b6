"""The probes of one job. A probe returns None for what it cannot see, and notes the reason once.

states         what the kernel reports of processes and threads
proc           the job's processes and threads, and its other ranks: ProcProbe
machine_facts  cores, quotas, disks, memory, other programs: SystemProbe
pages          loaders that report from inside: PagesProbe
data_folders   where the data lies, by open files and by the program's source
nvml           GPUs: NvmlProbe
stacks         Python stacks by py-spy, counted: StackProbe; calls (parsed stacks), frames, worker_tasks (what they
               show), loops (what the program's source adds)
"""
