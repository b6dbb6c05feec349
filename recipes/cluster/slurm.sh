#!/bin/bash
# Train a recipe on several machines under Slurm, one process per task (on GPUs: one task per GPU):
#
#   sbatch --nodes 2 --ntasks-per-node 8 --gpus-per-node 8 recipes/cluster/slurm.sh recipes/big.yaml --run-dir runs/big
#
# The arguments after the script go to `nmt train`. The job requeues itself when a machine or process dies and before its time
# limit; the same command then resumes. All machines need the same prepared corpus; only the first needs the run. Where host
# names do not resolve, name the network interface: export GLOO_SOCKET_IFNAME=eth0 NCCL_SOCKET_IFNAME=eth0
#SBATCH --job-name=nmt
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@300
MOST_RESTARTS=100

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT
# Processes end by themselves when one dies (74; 134 on GPUs), all with one code, which a signal from srun would hide.
srun --mpi=none --kill-on-bad-exit=0 bash -c '
  export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
  export LOCAL_WORLD_SIZE=$((SLURM_NTASKS / SLURM_NNODES))
  exec nmt train "$@"' nmt-train "$@"
code=$?

case $code in # errors that a retry may fix: a lost process, a busy directory, a signal
  69 | 74 | 75 | 134 | 137 | 143)
    if [ "${SLURM_RESTART_COUNT:-0}" -lt "$MOST_RESTARTS" ]; then
      scontrol requeue "$SLURM_JOB_ID"
    fi ;;
esac
exit $code
