#!/bin/bash
# Translate files on many machines under Slurm, one worker per task of an array. Give the arguments of nmt translate:
#
#   sbatch --array=1-100 --cpus-per-task=64 recipes/cluster/translate.sh text/ -o out --model models/en-de
#   nmt translate text/ --check out && nmt translate text/ --join out       # once the array has ended
#
# out must be a directory that all machines see, or a URL such as s3://bucket/out. Any task may do any unit of 10,000
# lines, so tasks may start late, die or be cancelled, and a second array of any size helps the first one. Edit the
# #SBATCH lines: add your partition, and a time limit of hours if short jobs start sooner.
#SBATCH --job-name=nmt-translate
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@60
MOST_RESTARTS=100

export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1} # srun does not inherit it from sbatch
srun --mpi=none nmt translate "$@" --shard auto
code=$?

case $code in # a retry may help: a lost process, a full disk, the time limit
  69 | 74 | 75 | 137 | 143)
    if [ "${SLURM_RESTART_COUNT:-0}" -lt "$MOST_RESTARTS" ]; then
      scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
    fi ;;
esac
exit $code
