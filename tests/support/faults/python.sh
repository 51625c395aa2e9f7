#!/bin/sh
# Acts as the python of a local stage (`python=` of a hosts line) and runs the worker of
# `tests.support.faults.worker`, which misbehaves as FAULT says. FAULT_CGROUP: join that memory
# cgroup first. FAULT_PEER: run that peer in place of a worker. FAULT_LOGIN: act as a launcher.
if [ -n "$FAULT_CGROUP" ]; then
    echo $$ >"$FAULT_CGROUP/cgroup.procs" || exit 97
fi
while [ "$1" != worker ]; do shift; done
shift
here=$(dirname "$0")
root=$(cd "$here/../../.." && pwd)
if [ -n "$FAULT_PEER" ]; then
    PYTHONPATH="$root" exec "$FAULT_PYTHON" -m "tests.support.peers.$FAULT_PEER" "$@"
fi
PYTHONPATH="$root" exec "$FAULT_PYTHON" -m tests.support.faults.worker "$@"
