#!/usr/bin/env bash
# Start a real SLURM cluster on this machine alone: loopback addresses, no systemd, no accounting, two nodes with one
# pretended GPU each. Prints the exports that point clients to it:
#   eval "$(tests/slurm/slurm-up.sh FOLDER)"; sinfo; tests/slurm/slurm-down.sh FOLDER
# FOLDER holds everything: configuration, keys, state, logs and process ids. Needs the Debian packages slurm-wlm, munge.
set -euo pipefail
folder=$(realpath -m "${1:?usage: slurm-up.sh FOLDER}")
nodes=2
cpus=4 # pretended, too: the same on every machine
port=$((20000 + RANDOM % 20000))
export PATH=$PATH:/usr/sbin:/sbin SLURM_CONF=$folder/slurm.conf

for tool in slurmctld slurmd munged srun; do
  command -v "$tool" >/dev/null || { echo "slurm-up.sh: $tool is missing: apt-get install slurm-wlm munge" >&2; exit 1; }
done
[ ! -e "$SLURM_CONF" ] || { echo "slurm-up.sh: $folder is in use; stop it with slurm-down.sh first" >&2; exit 1; }
mkdir -p "$folder"/{bin,log,run,state}
mkdir -m 700 "$folder/munge"

cat >"$SLURM_CONF" <<CONF
ClusterName=test
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$port
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
# A job that goes back into the queue waits these seconds, two minutes by default. If it came sooner, its node might not
# be done with it: it refuses the job then, and SLURM holds it.
AuthInfo=socket=$folder/munge/socket,cred_expire=60
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldPidFile=$folder/run/slurmctld.pid
SlurmdPidFile=$folder/run/slurmd-%n.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd-%n.log
# Without cgroups and without root.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
# A job that takes more memory than it asked for is killed, as cgroups do.
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
GresTypes=gpu
AccountingStorageType=accounting_storage/none
ReturnToService=2
# Seconds from SIGTERM to SIGKILL; then how long squeue remembers a job.
KillWait=5
MinJobAge=3600
# Seconds within which a daemon answers. After the default of ten, which are few on a busy machine, SLURM puts a job back
# that its node begins nevertheless.
MessageTimeout=100
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
$(for i in $(seq "$nodes"); do
  echo "NodeName=n$i NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$((port + i)) CPUs=$cpus RealMemory=8000 Gres=gpu:fake:1"
done)
PartitionName=main Nodes=n[1-$nodes] Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes=n[1-$nodes] MaxTime=30 State=UP
CONF
for i in $(seq "$nodes"); do
  mkdir "$folder/spool-n$i"
  echo "NodeName=n$i Name=gpu Type=fake File=/dev/null"
done >"$folder/gres.conf"

# Snakemake's job step drops SLURM_CONF from its environment before it calls srun.
printf '#!/bin/sh\nSLURM_CONF=%s exec %s "$@"\n' "$SLURM_CONF" "$(command -v srun)" >"$folder/bin/srun"
chmod +x "$folder/bin/srun"

(umask 077 && head -c 1024 /dev/urandom >"$folder/munge/key")
munged --force --key-file="$folder/munge/key" --socket="$folder/munge/socket" --seed-file="$folder/munge/seed" \
  --pid-file="$folder/run/munged.pid" --log-file="$folder/log/munged.log" >&2
slurmctld -i >&2
for i in $(seq "$nodes"); do slurmd -N "n$i" >&2; done

for _ in $(seq 150); do
  if [ "$(sinfo --noheader --partition=main --Node --format=%t 2>/dev/null | grep -cx idle)" = "$nodes" ]; then
    echo "export SLURM_CONF=$SLURM_CONF PATH=$folder/bin:\$PATH"
    exit 0
  fi
  sleep 0.2
done
echo "slurm-up.sh: the nodes are not idle after 30 seconds" >&2
tail -n 20 "$folder"/log/*.log >&2
exit 1
