/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PERF_MACHINE_H
#define PERF_MACHINE_H

/* Without these a number says nothing: the machine, how the programs were compiled, how MPI was set. */

#include <stddef.h>

typedef struct perf_machine {
    char cpu[160];
    long cpus; /* that this system runs on, not only this process */
    const char *compiler;
    const char *build_type;
    const char *flags;
} perf_machine;

void perf_machine_init(perf_machine *machine);

/* Calls take with each "name=value" of the environment that changes how the library's peers or malloc perform. */
void perf_machine_settings(void (*take)(void *user, const char *setting), void *user);

#endif
