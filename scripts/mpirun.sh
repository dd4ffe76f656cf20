#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs "mpirun ..." so that it works on one machine of any size, as root or not: scripts/mpirun.sh mpirun -n 2 program
# Only the environment is changed, and what is already set there wins, so other MPIs than Open MPI are run as they are.
set -eu

if [ "$#" -eq 0 ] || [ "$1" = --help ]; then
    echo "usage: scripts/mpirun.sh MPIRUN ARGUMENT..."
    echo "Runs MPIRUN ARGUMENT... with settings for a single machine: more ranks than cores, no pinning, root allowed."
    [ "$#" -gt 0 ]
    exit
fi

default() {
    eval "export $1=\"\${$1-$2}\""
}

# Decided here and not when CMake ran: the builder and the one who runs may be different users.
if [ "$(id -u)" -eq 0 ]; then
    default OMPI_ALLOW_RUN_AS_ROOT 1
    default OMPI_ALLOW_RUN_AS_ROOT_CONFIRM 1
fi

# More ranks than cores, and several jobs at once: no pinning (each job would pick core 0), and idle ranks yield.
default OMPI_MCA_rmaps_base_oversubscribe 1
default OMPI_MCA_hwloc_base_binding_policy none
default OMPI_MCA_mpi_yield_when_idle 1
default PRTE_MCA_rmaps_default_mapping_policy :oversubscribe
default PRTE_MCA_hwloc_default_binding_policy none

# Containers often forbid one process to read another's memory; Open MPI then warns on every start.
default OMPI_MCA_btl_vader_single_copy_mechanism none
default OMPI_MCA_btl_base_warn_component_unused 0
default HWLOC_HIDE_ERRORS 2

# One machine needs no remote shell, and a small container has none.
command -v ssh >/dev/null 2>&1 || default OMPI_MCA_plm_rsh_agent false

# Open MPI asks for localhost again and again; without a line for it in /etc/hosts a name server far away may be asked.
grep -qsw localhost /etc/hosts || default RES_OPTIONS "timeout:1 attempts:1"

exec "$@"
