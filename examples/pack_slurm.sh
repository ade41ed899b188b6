#!/bin/bash
#SBATCH --job-name=iofast-pack
#SBATCH --array=1-64            # parts: several per machine, so that none waits for the slowest
#SBATCH --cpus-per-task=16
#SBATCH --requeue               # a part whose node is lost starts again, and resumes
#SBATCH --open-mode=append

# sbatch examples/pack_slurm.sh SRC DST [options of iofast pack]
# SRC and DST are in folders that all nodes share. The task that packs the last part joins them.
# If a task failed, submit the same again: parts that are packed are left as they are.
set -eu
exec iofast pack "$@" --part slurm --finish-when-complete --workers "${SLURM_CPUS_PER_TASK:-1}" --quiet
