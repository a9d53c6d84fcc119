#!/usr/bin/env bash
# Stop the cluster that slurm-up.sh started in FOLDER: cancel its jobs, end its daemons by process id, delete FOLDER.
set -uo pipefail
folder=$(realpath -m "${1:?usage: slurm-down.sh FOLDER}")
export SLURM_CONF=$folder/slurm.conf
[ -e "$SLURM_CONF" ] || { echo "slurm-down.sh: no cluster in $folder" >&2; exit 1; }

timeout 10 scancel --user "$(id -un)"
for _ in $(seq 50); do
  [ -z "$(timeout 5 squeue --noheader 2>/dev/null)" ] && break
  sleep 0.2
done

for file in "$folder"/run/{slurmctld,slurmd-*,munged}.pid; do
  [ -s "$file" ] || continue
  daemon=$(basename "$file" .pid) pid=$(cat "$file")
  # A process id may have passed to a stranger.
  grep -qa "${daemon%%-*}" "/proc/$pid/cmdline" 2>/dev/null || continue
  kill "$pid"
  for _ in $(seq 100); do
    kill -0 "$pid" 2>/dev/null || continue 2
    sleep 0.1
  done
  kill -KILL "$pid"
done
rm -rf "$folder"
