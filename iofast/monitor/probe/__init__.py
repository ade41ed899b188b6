"""What can be seen of a job, one kind of sight a module. Each says None, and once why, for what it cannot see.

states     threads by their open files in /proc: what the kernel says they are at
family     the processes below a training process, and which of them load
proc       the job's processes and threads: ProcProbe
system     cores, quotas, pressure, disks, memory: SystemProbe
pages      loaders that report from inside, and other ranks: PagesProbe
peers      other ranks that report nothing: a look at their training threads
open_files where the data lies
nvml       devices
stacks     Python stacks, by py-spy
"""
