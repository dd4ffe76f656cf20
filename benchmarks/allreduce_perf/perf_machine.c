/* SPDX-License-Identifier: Apache-2.0 */
#include "perf_machine.h"
#include "perf_program.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef ALLREDUCE_PERF_BUILD_TYPE
#define ALLREDUCE_PERF_BUILD_TYPE "unknown"
#endif
#ifndef ALLREDUCE_PERF_FLAGS
#define ALLREDUCE_PERF_FLAGS "unknown"
#endif
#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown"
#endif

/* "model name : AMD EPYC ..."; other architectures have other keys or none. */
static void read_cpu(char *cpu, size_t size) {
    snprintf(cpu, size, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (file == NULL) {
        return;
    }
    char line[512];
    while (fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');
        if (colon != NULL && strncmp(line, "model name", 10) == 0) {
            colon += strspn(colon, ": \t");
            snprintf(cpu, size, "%.*s", (int)strcspn(colon, "\n"), colon);
            break;
        }
    }
    fclose(file);
}

void perf_machine_init(perf_machine *machine) {
    read_cpu(machine->cpu, sizeof machine->cpu);
    machine->cpus = sysconf(_SC_NPROCESSORS_ONLN);
    machine->compiler = COMPILER;
    machine->build_type = ALLREDUCE_PERF_BUILD_TYPE;
    machine->flags = ALLREDUCE_PERF_FLAGS;
}

static bool starts_with(const char *entry, const char *start) {
    return strncmp(entry, start, strlen(start)) == 0;
}

void perf_machine_settings(void (*take)(void *user, const char *setting), void *user) {
    static const char *const starts[] = {"OMPI_MCA_btl",
                                         "OMPI_MCA_coll",
                                         "OMPI_MCA_pml",
                                         "OMPI_MCA_mpi_yield",
                                         "OMPI_MCA_hwloc_base_binding_policy",
                                         "MPIR_CVAR_",
                                         "UCX_",
                                         "GLIBC_TUNABLES",
                                         "MALLOC_",
                                         "LD_PRELOAD"};
    for (char **entry = environ; *entry != NULL; entry++) {
        for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
            if (starts_with(*entry, starts[i])) {
                take(user, *entry);
            }
        }
        for (const char *const *start = perf_program_own.settings; *start != NULL; start++) {
            if (starts_with(*entry, *start)) {
                take(user, *entry);
            }
        }
    }
}
