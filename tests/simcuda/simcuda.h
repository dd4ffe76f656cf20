/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIMCUDA_H
#define SIMCUDA_H

/*
 * What a test says to the simulated CUDA runtime and NCCL that it links instead of the real ones; README.md has an
 * example. The runtime and NCCL themselves are called through their own headers.
 *
 * A test calls simcuda_reset(), chooses a schedule and faults, runs what it tests, and then looks at the reports and
 * the counters. All of these may be called from any thread; the counters and reports are those of the process.
 */

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Kernels. */

/* Bytes that a kernel or the host reads, or writes, or both: two of them then. */
typedef struct simcuda_access {
    const void *start;
    size_t bytes;
    int is_write;
} simcuda_access;

typedef void (*simcuda_function)(void *arguments);

/*
 * Enqueues function(a copy of arguments) on the stream, as a kernel launch does. `accesses` are all device and host
 * memory that it touches: it is what the vector clocks compare, and touching other device memory is reported. `name`
 * is what reports and counters call it. Both arrays are copied.
 */
cudaError_t simcuda_launch(cudaStream_t stream, simcuda_function function, const void *arguments, size_t argument_bytes,
                           const char *name, const simcuda_access *accesses, size_t access_count);

/* Enqueues writing NaN patterns, so that values of memory that nobody should read any more show where they are read. */
cudaError_t simcuda_poison(cudaStream_t stream, void *start, size_t bytes);

/* Reports. */

typedef enum simcuda_kind {
    SIMCUDA_RACE,        /* two accesses that nothing orders */
    SIMCUDA_UNDECLARED,  /* a kernel touched device memory that its launch did not declare */
    SIMCUDA_MISMATCH,    /* ranks called different collectives, or with different arguments */
    SIMCUDA_REGISTERED,  /* memory was freed while a communicator has it registered */
    SIMCUDA_WRONG_MEMORY /* host memory where device memory belongs or the reverse, or beyond the end of an allocation
                          */
} simcuda_kind;

typedef struct simcuda_report {
    simcuda_kind kind;
    char first[64];        /* the earlier access: its operation ... */
    char first_stream[64]; /* ... and where it ran: "stream 2 of device 0", the name given to it, or "host" */
    char second[64];       /* the access that found it */
    char second_stream[64];
    char text[512]; /* one sentence with all of it, and the edge that is missing */
} simcuda_report;

/* Copies as many reports as there is room for; returns how many there are. Equal ones are reported once. */
size_t simcuda_reports(simcuda_report *reports, size_t capacity);

/* Declares that the host reads or writes memory here, for the vector clocks; ThreadSanitizer needs no such help. */
void simcuda_host_access(const void *start, size_t bytes, int is_write, const char *name);

/* What reports call the stream. */
void simcuda_name(cudaStream_t stream, const char *name);

/* Schedules. */

/*
 * 0: every stream runs as soon as it can. Otherwise one operation at a time runs, chosen by the seed among the heads of
 * all streams that could run, and operations wait until a call of the host lets them run: each enqueuing call lets
 * none, one or two of them run, by the seed; a query lets one run; a waiting host lets all of them run, and so do 100
 * ms without any call, for programs that wait by other means. With one host thread the order follows from the seed
 * alone; with several, also from how they interleave.
 */
void simcuda_schedule(uint64_t seed);

/* Whether a device runs one kernel or collective at a time, as one that a kernel fills does; without a seed, of those
 * that could run the one that was enqueued first. */
void simcuda_one_kernel_at_a_time(int is_on);

/* Nothing of the stream starts between these two. */
void simcuda_hold(cudaStream_t stream);
void simcuda_release(cudaStream_t stream);

/* Every operation of the stream starts so much later. */
void simcuda_delay(cudaStream_t stream, unsigned microseconds);

/* Waits until no stream has anything left that it could run and destroyed streams are gone. Orders nothing. */
void simcuda_wait_idle(void);

/* Counters. */

uint64_t simcuda_calls(const char *call);      /* of "cudaEventRecord", "ncclAllReduce", ...; dropped calls included */
uint64_t simcuda_launches(const char *kernel); /* by the name that its launch gave */
uint64_t simcuda_all_launches(void);           /* of all kernels */
uint64_t simcuda_host_synchronisations(void);  /* calls in which the host waits for the device, explicitly or not */
uint64_t simcuda_default_stream_uses(void);    /* of stream 0, the legacy stream and the per-thread stream */
uint64_t simcuda_device_changes(void);         /* how often cudaSetDevice changed a thread's current device */
uint64_t simcuda_allocations(void);            /* device and page-locked host blocks that exist now */
uint64_t simcuda_objects(void);                /* streams, events, communicators, handles of cuBLAS that exist now */

/* Faults. */

typedef enum simcuda_effect {
    SIMCUDA_RETURNS,     /* the call returns `result` and does nothing */
    SIMCUDA_FAILS_LATER, /* the call succeeds; what it enqueued fails with `result` when it runs */
    SIMCUDA_HANGS        /* NCCL: what it enqueued, or the communicator's creation, ends only when it is aborted */
} simcuda_effect;

#define SIMCUDA_ANY_RANK (-1)

/*
 * The nth call (from 1) named `call` by `rank` fails. The rank is the communicator's for NCCL calls that have one, and
 * otherwise the thread's, see simcuda_thread_rank(). `result` is a cudaError_t or an ncclResult_t. Several faults may
 * be set; each happens once.
 */
void simcuda_fault(const char *call, int rank, unsigned nth, simcuda_effect effect, int result);

/* The rank of the calling thread, for faults in CUDA calls; its current device where it never said. */
void simcuda_thread_rank(int rank);

/* Whether the other ranks' operations end with ncclRemoteError when one fails or aborts (1), or hang as they would
 * over NVLink (0, the default). */
void simcuda_peers_notice(int is_on);

/* Whether ncclCommAbort waits for the whole device, as freeing device memory does, before it returns (default 0). */
void simcuda_abort_waits_for_device(int is_on);

/* How often ncclCommGetAsyncError says ncclInProgress of a non-blocking communicator before a call has happened. */
void simcuda_polls(unsigned polls);

/* What the machine looks like. Devices: 8, or the environment's SIMCUDA_DEVICES. */
void simcuda_set_device_count(int count);
void simcuda_set_bus_id(int device, const char *bus_id);
void simcuda_set_nccl_version(int version);
void simcuda_set_driver_version(int version);
void simcuda_set_runtime_version(int version);

/* Mutation. */

/* The nth cudaEventRecord or cudaStreamWaitEvent since the reset (from 1, both counted together) does nothing. */
void simcuda_drop(unsigned nth);

/* Each place that calls cudaEventRecord or cudaStreamWaitEvent. Module and offset are the same in every run of a
 * program; addr2line -e MODULE OFFSET names the line. */
typedef struct simcuda_site {
    const char *call;
    char module[96];   /* the file's name without its directory */
    uintptr_t offset;  /* of the return address */
    char function[64]; /* empty where the symbol is hidden */
    uint64_t calls;
} simcuda_site;

size_t simcuda_sites(simcuda_site *sites, size_t capacity);

/* All calls from this site do nothing; NULL: no site any more. */
void simcuda_drop_site(const char *module, uintptr_t offset);

/* Forgets counters, reports, faults, what the memory was used for, and every setting above, back to the environment's:
 *   SIMCUDA_SEED=n  SIMCUDA_DROP=n  SIMCUDA_DROP_SITE=module+0xoffset  SIMCUDA_DEVICES=n
 *   SIMCUDA_SITES=file     at exit, writes one line per site to it: call module+0xoffset calls function
 *   SIMCUDA_STRICT=1       at exit, prints the reports to stderr and exits with status 66 if there are any
 */
void simcuda_reset(void);

#ifdef __cplusplus
}
#endif

#endif
