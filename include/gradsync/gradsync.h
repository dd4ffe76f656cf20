/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GRADSYNC_GRADSYNC_H
#define GRADSYNC_GRADSYNC_H

/**
 * libgradsync: data-parallel gradient synchronisation for training loops written in C, C++ or CUDA.
 *
 * Every rank computes gradients on its own data; before the optimizer step all ranks hold the same mean, and the
 * communication runs while backward is still computing.
 *
 * The calls of a trainer, in order:
 *
 *     gsync_comm *comm = NULL;
 *     gsync_comm_create(&comm, NULL);                     // the ranks: mpirun's, or this process alone
 *     gsync_reducer *r = NULL;
 *     gsync_reducer_create(&r, comm, NULL);               // NULL: the defaults
 *     for (int i = 0; i < n; i++)
 *         gsync_reducer_add(r, name[i], grad[i], count[i], GSYNC_FLOAT32);   // in the order of forward
 *     gsync_reducer_commit(r);                            // the ranks compare what they registered
 *     gsync_broadcast(comm, params, nparams, GSYNC_FLOAT32, 0);
 *     for (...) {
 *         gsync_begin(r, is_last_micro_batch ? GSYNC_SYNC : GSYNC_ACCUMULATE);
 *         backward();                                     // calls gsync_ready(r, grad) as each becomes final
 *         gsync_finish(r, NULL);                          // what was not marked is reduced here
 *         if (is_last_micro_batch) optimizer_step();
 *     }
 *     gsync_reducer_destroy(&r);
 *     gsync_comm_destroy(&comm);
 *
 * Rules that hold for every call
 *  - It returns a gsync_status (GSYNC_OK is 0, errors are negative) unless it only reads a value. It never prints,
 *    exits or aborts. gsync_last_error() holds the details of this thread's last failure.
 *  - Bad input gets a status and changes nothing. Outputs are written only on success, except gsync_step_info,
 *    which is also filled by a failed step.
 *  - Every wait ends after the communicator's timeout (gsync_comm_options.timeout_ms).
 *  - "Collective" calls are made by every rank of the communicator, in the same order on each.
 *  - Options structs start with their size; set them up with the _INIT macro. Zero always means the default. NULL
 *    in place of a struct means all defaults.
 *  - Different reducers and communicators may be used from different threads at the same time. One reducer is used
 *    by one thread at a time, except gsync_ready and gsync_ready_list, which any thread may call at any moment
 *    between gsync_begin and gsync_finish.
 *
 * This header is C11 and C++11 and includes no MPI or CUDA header. gradsync_mpi.h adds a communicator from an
 * MPI_Comm.
 */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GSYNC_VERSION_MAJOR 0
#define GSYNC_VERSION_MINOR 1
#define GSYNC_VERSION_PATCH 0

#if defined(__GNUC__)
#define GSYNC_API __attribute__((visibility("default")))
#else
#define GSYNC_API
#endif

/* ---- Statuses, grouped by what the caller does about them ------------------------------------------------- */

typedef enum gsync_status {
    GSYNC_OK = 0,

    /* Correct the call. Nothing was changed; the reducer and the communicator stay usable. */
    GSYNC_ERR_ARGUMENT = -1,         /* a null, unknown, or nonsense value; the text names it */
    GSYNC_ERR_STATE = -2,            /* the call came at the wrong moment: before commit, outside a step, ... */
    GSYNC_ERR_MISMATCH = -3,         /* ranks disagree; every rank gets this, with the first difference */
    GSYNC_ERR_INCOMPLETE = -4,       /* strict: gradients were never marked ready; every rank gets their names */
    GSYNC_ERR_ALREADY_READY = -5,    /* marked ready more often than declared; the earlier mark stands */
    GSYNC_ERR_UNKNOWN_GRADIENT = -6, /* no gradient is registered at this address or under this name */
    GSYNC_ERR_CHANGED = -7,          /* checks_writes: a gradient was written after it was marked ready */
    GSYNC_ERR_UNSUPPORTED = -8,      /* not in this build, or not for this dtype */
    GSYNC_ERR_NONFINITE = -9,        /* inf or NaN where a finite number is needed; nothing was changed */
    GSYNC_ERR_DIVERGED = -10,        /* the loss scale is at its floor and step after step overflows */

    /* Try again when there is more of it. */
    GSYNC_ERR_MEMORY = -20,

    /* Rebuild: destroy the reducer (for a failure outside a step: the communicator), and create it anew. */
    GSYNC_ERR_TIMEOUT = -40,   /* the deadline passed; the text names the ranks that did not arrive, and where */
    GSYNC_ERR_PEER_LOST = -41, /* a rank destroyed its side, or died, in the middle of the operation */
    GSYNC_ERR_ABORTED = -42,   /* a rank called gsync_comm_abort, or gave up; the text says which and why */

    /* Give up: the layer below failed. */
    GSYNC_ERR_TRANSPORT = -60, /* MPI or the operating system refused; the text carries its own words */
    GSYNC_ERR_INTERNAL = -61   /* our mistake; please report it with the text */
} gsync_status;

/** The status's constant name, such as "GSYNC_ERR_TIMEOUT"; never NULL. Any thread. */
GSYNC_API const char *gsync_status_name(gsync_status status);

/**
 * This thread's last failure in words: rank, gradient name, and what to do. Never NULL; "" before the first failure.
 * The text stays valid until this thread's next failing call. Successful calls do not clear it.
 */
GSYNC_API const char *gsync_last_error(void);

/** "major.minor.patch" of the library that is running, which may differ from this header's. */
GSYNC_API const char *gsync_version(void);

/* ---- Element types and operations ------------------------------------------------------------------------- */

typedef enum gsync_dtype {
    GSYNC_FLOAT32 = 1,  /* summed in float32 */
    GSYNC_FLOAT64 = 2,  /* summed in float64 */
    GSYNC_FLOAT16 = 3,  /* IEEE binary16; summed and divided in float32, rounded once */
    GSYNC_BFLOAT16 = 4, /* summed and divided in float32, rounded once */
    GSYNC_INT32 = 5,    /* gsync_allreduce and gsync_broadcast only: gradients are never integers */
    GSYNC_INT64 = 6,
    GSYNC_UINT8 = 7 /* gsync_broadcast: any bytes */
} gsync_dtype;

/** Bytes of one element; 0 for a value that is no gsync_dtype. */
GSYNC_API size_t gsync_dtype_size(gsync_dtype dtype);

typedef enum gsync_op {
    GSYNC_MEAN = 0,          /* the sum divided by the number of ranks (see gsync_divisor) */
    GSYNC_SUM = 1,           /* nothing divides */
    GSYNC_WEIGHTED_MEAN = 2, /* gradients only: the sum divided by the sum of gsync_set_weight over all ranks */
    GSYNC_MIN = 3,           /* gsync_allreduce only */
    GSYNC_MAX = 4            /* gsync_allreduce only */
} gsync_op;

/* ---- Communicators: a group of ranks that reduce together -------------------------------------------------- */

typedef struct gsync_comm gsync_comm;

typedef enum gsync_transport {
    GSYNC_TRANSPORT_AUTO = 0, /* MPI if its launcher started this process, NCCL if torchrun did and there is a GPU, else
                                 a single rank */
    GSYNC_TRANSPORT_SINGLE = 1,
    GSYNC_TRANSPORT_MPI = 2,
    GSYNC_TRANSPORT_NCCL = 3 /* no MPI: the processes find each other by torchrun's variables, see gsync_comm_create */
} gsync_transport;

typedef enum gsync_progress {
    GSYNC_PROGRESS_AUTO = 0, /* a helper thread where MPI's thread level allows it, else the caller's thread */
    GSYNC_PROGRESS_HELPER = 1,
    GSYNC_PROGRESS_CALLER = 2 /* work is done inside gsync_ready and gsync_finish; no thread is started */
} gsync_progress;

typedef enum gsync_log_level {
    GSYNC_LOG_ERROR = 1, /* a call failed */
    GSYNC_LOG_WARN = 2,  /* odd, but results stand */
    GSYNC_LOG_INFO = 3,  /* once per object */
    GSYNC_LOG_DEBUG = 4, /* once per step */
    GSYNC_LOG_TRACE = 5  /* once per bucket */
} gsync_log_level;

/** Gets one line without a newline. May be called from any thread, also the library's own; must not call back. */
typedef void (*gsync_log_function)(void *user, gsync_log_level level, const char *message);

typedef struct gsync_comm_options {
    size_t struct_size;        /* set by the initializer */
    gsync_transport transport; /* 0: AUTO */
    gsync_progress progress;   /* 0: AUTO */
    uint32_t timeout_ms;       /* 0: ten minutes. How long any wait for other ranks may take */
    uint32_t ranks_per_host;   /* 0: as the machine is. k: treat every k ranks of a host as a host of their own,
                                  so that the path between hosts can be tried on one machine (MPI only) */
    gsync_log_function log;    /* NULL: silent */
    void *log_user;            /* handed to log */
    gsync_log_level log_level; /* 0: GSYNC_LOG_WARN. The least important level that is still reported */
    uint32_t nccl_ctas_max;    /* 0: NCCL's choice. How many of a GPU's multiprocessors a collective may keep busy */
    int allows_shared_device;  /* 1: two ranks may use one GPU, for tests; NCCL itself has to be told too, with
                                  NCCL_HOSTID or NCCL_MULTI_RANK_GPU_ENABLE. All ranks alike */
    int nccl_registers_memory; /* 1: buckets come from ncclMemAlloc and are registered with NCCL, which then need not
                                  copy them through buffers of its own. Where all gradients of a reducer are in the
                                  library's memory on all ranks, and NCCL has the calls; has no effect elsewhere */
    int has_normal_priority;   /* 1: the library's stream on a GPU has the priority of others, instead of the highest */
} gsync_comm_options;
#define GSYNC_COMM_OPTIONS_INIT                                                                                        \
    {                                                                                                                  \
        sizeof(gsync_comm_options), GSYNC_TRANSPORT_AUTO, GSYNC_PROGRESS_AUTO, 0, 0, 0, 0, (gsync_log_level)0, 0, 0,   \
            0, 0                                                                                                       \
    }

/**
 * Collective. Makes the communicator of all processes that the launcher (mpirun, srun) started, or of this process
 * alone when there was no launcher: the same binary works both ways.
 *
 * MPI is initialised only if it was not, with the highest thread level it offers; then the library finalises it at
 * process exit unless somebody did before. Returns GSYNC_ERR_UNSUPPORTED when a launcher started several processes
 * and this build has no MPI. On success the caller owns *comm and gives it to gsync_comm_destroy.
 *
 * GSYNC_TRANSPORT_NCCL: call cudaSetDevice(LOCAL_RANK) before. RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
 * MASTER_PORT are what torchrun sets. Rank 0 listens at the port behind MASTER_PORT, or where NCCL_COMM_ID
 * ("host:port") says. A rank that does not come, or has no GPU, is known to the others at their deadline.
 */
GSYNC_API gsync_status gsync_comm_create(gsync_comm **comm, const gsync_comm_options *options);

/**
 * Makes world_size communicators at once, for ranks that are threads of this process: comms[i] is rank i's, to be
 * used by rank i's thread. Not collective: one thread calls it before the ranks start. comms has room for world_size
 * handles; each is destroyed on its own, in any order.
 */
GSYNC_API gsync_status gsync_comm_threads(gsync_comm **comms, int world_size, const gsync_comm_options *options);

/**
 * Collective. Splits comm: ranks with the same color form a new communicator, ordered by key, then by old rank.
 * A negative color takes part and gets *part = NULL with GSYNC_OK. The parent stays usable.
 */
GSYNC_API gsync_status gsync_comm_split(gsync_comm *comm, int color, int key, gsync_comm **part);

GSYNC_API int gsync_rank(const gsync_comm *comm);       /* 0 .. world size - 1; -1 for NULL */
GSYNC_API int gsync_world_size(const gsync_comm *comm); /* 0 for NULL */
GSYNC_API int gsync_local_rank(const gsync_comm *comm); /* rank among the ranks of this host; -1 for NULL */

/** One line: transport, hosts, progress mode, and why they were chosen. Valid as long as comm. Never NULL. */
GSYNC_API const char *gsync_comm_describe(const gsync_comm *comm);

/**
 * Collective, blocking. Every rank's buf becomes root's: count elements of dtype (GSYNC_UINT8 for plain bytes).
 * For parameters at the start of training. May run while buckets of a reducer are in flight.
 */
GSYNC_API gsync_status gsync_broadcast(gsync_comm *comm, void *buf, size_t count, gsync_dtype dtype, int root);

/**
 * Collective, blocking, in place. buf becomes the op over all ranks, summed in rank order, on several hosts inside each
 * host first, so every rank gets the same bits. For metrics, flags, and parameters. GSYNC_WEIGHTED_MEAN, and GSYNC_MEAN
 * of integers, are refused. If it fails, buf may hold a mixture of old and reduced values.
 */
GSYNC_API gsync_status gsync_allreduce(gsync_comm *comm, void *buf, size_t count, gsync_dtype dtype, gsync_op op);

/** Collective, blocking. Returns when every rank has called it. */
GSYNC_API gsync_status gsync_barrier(gsync_comm *comm);

/**
 * Collective, blocking. *all becomes 1 when every rank gave mine_is_done != 0, else 0: ranks with unequal amounts of
 * data agree here on when to stop (see gsync_finish_empty).
 */
GSYNC_API gsync_status gsync_all_done(gsync_comm *comm, int mine_is_done, int *all);

/**
 * Collective, blocking. Checks that n buffers hold the same bytes on every rank. names[i] may be used in the text of
 * the error; names may be NULL. GSYNC_ERR_MISMATCH, on every rank, names the first buffer and rank that differ from
 * rank 0. Reads each buffer once; 8 bytes per buffer travel.
 */
GSYNC_API gsync_status gsync_check_replicas(gsync_comm *comm, const char *const *names, const void *const *bufs,
                                            const size_t *bytes, size_t n);

/**
 * Ends every operation of this communicator and its reducers, on all ranks, with GSYNC_ERR_ABORTED and the reason
 * given (may be NULL). Any thread. The communicator can then only be destroyed. A rank on another host learns of it
 * at its own deadline.
 */
GSYNC_API void gsync_comm_abort(gsync_comm *comm, const char *reason);

/**
 * Frees the communicator and sets *comm to NULL. NULL, and a pointer to NULL, are accepted. Not collective; returns
 * without waiting for other ranks, also after failures and after MPI_Finalize. Reducers may be destroyed before or
 * after; those left behind only answer with GSYNC_ERR_STATE.
 */
GSYNC_API void gsync_comm_destroy(gsync_comm **comm);

/* ---- Reducers: the gradients of one model over one communicator --------------------------------------------- */

typedef struct gsync_reducer gsync_reducer;

typedef enum gsync_strategy {
    GSYNC_STRATEGY_DDP = 0,   /* PyTorch's rule: a bucket closes when it reaches its cap; the first cap is small */
    GSYNC_STRATEGY_FIXED = 1, /* no bucket exceeds bucket_bytes_max, unless one gradient alone does */
    GSYNC_STRATEGY_SINGLE = 2 /* one bucket per dtype */
} gsync_strategy;

typedef enum gsync_order {
    GSYNC_ORDER_AGREED = 0,    /* step 1: reverse registration; then rank 0's observed ready order, for all ranks */
    GSYNC_ORDER_REGISTERED = 1 /* reverse registration for good */
} gsync_order;

typedef enum gsync_accumulation {
    GSYNC_CLIENT_ACCUMULATES = 0, /* backward adds into the gradient buffer over the micro-batches of a window */
    GSYNC_CLIENT_OVERWRITES = 1   /* backward overwrites it; the library adds up, in float32 (float64 for float64) */
} gsync_accumulation;

typedef enum gsync_weighting {
    GSYNC_WEIGHT_OF_SUMS = 0, /* gradients are sums over samples: result = sum of gradients / sum of weights */
    GSYNC_WEIGHT_OF_MEANS = 1 /* gradients are means over a micro-batch's samples: the library multiplies each by
                                 its weight first. Needs GSYNC_CLIENT_OVERWRITES */
} gsync_weighting;

typedef enum gsync_divisor {
    GSYNC_DIVIDE_BY_WORLD = 0,       /* GSYNC_MEAN divides by the world size, also when ranks contribute nothing */
    GSYNC_DIVIDE_BY_PARTICIPANTS = 1 /* GSYNC_MEAN divides by the number of ranks that contributed to the window */
} gsync_divisor;

/*
 * What travels between ranks. A narrow wire is lossy: each contribution is rounded once, the sum is made in float32 in
 * rank order and divided, and the result is rounded once more (but see gsync_wire_sum); every rank gets the same bits.
 * Sums over the ranks of one host need no wire; there contributions are rounded all the same, so that one host trains
 * as many do. On several hosts it is each host's sum that is rounded.
 */
typedef enum gsync_wire {
    GSYNC_WIRE_NATIVE = 0,   /* the gradient's own type; nothing is lost */
    GSYNC_WIRE_FLOAT16 = 1,  /* scaled by an agreed power of two, so that nothing overflows; 2 bytes an element */
    GSYNC_WIRE_BFLOAT16 = 2, /* 2 bytes an element */
    GSYNC_WIRE_INT8 = 3,     /* blocks of 256 elements with a scale each; 1.016 bytes an element */
    GSYNC_WIRE_FLOAT8 = 4,   /* E4M3, blocks of 256 with a power-of-two scale each; 1.004 bytes an element */
    GSYNC_WIRE_TOPK = 5      /* the largest elements of each gradient with their indices; 8 bytes each */
} gsync_wire;

/* Where the gradients are that were registered without an address; with one, the address decides. */
typedef enum gsync_memory {
    GSYNC_MEMORY_AUTO = 0, /* on a GPU if any other gradient is, else on the host */
    GSYNC_MEMORY_HOST = 1,
    GSYNC_MEMORY_DEVICE = 2 /* on the GPU that is current in gsync_reducer_commit; see gradsync_cuda.h */
} gsync_memory;

typedef struct gsync_options {
    size_t struct_size;              /* set by the initializer */
    gsync_strategy strategy;         /* 0: DDP */
    gsync_order order;               /* 0: AGREED */
    size_t bucket_bytes_max;         /* 0: 25 MiB. SIZE_MAX: no limit */
    size_t bucket_bytes_first_max;   /* DDP only. 0: 1 MiB, or bucket_bytes_max if that is smaller */
    gsync_op op;                     /* 0: MEAN. MEAN, SUM or WEIGHTED_MEAN */
    gsync_accumulation accumulation; /* 0: CLIENT_ACCUMULATES */
    gsync_weighting weighting;       /* 0: WEIGHT_OF_SUMS */
    gsync_divisor divisor;           /* 0: DIVIDE_BY_WORLD */
    int averages_window;             /* 0: micro-batches of a window are summed. 1: GSYNC_MEAN also divides by the
                                        number of micro-batches that the window really had. GSYNC_MEAN only */
    int is_strict;                   /* 1: gsync_finish refuses gradients that were never marked, by name */
    int finds_unused;                /* 1: a gradient not marked in the whole window is unused: it contributes zeros,
                                        and where no rank used it its buffer is left untouched */
    int checks_writes;               /* 1: for debugging. Each gradient is hashed when marked, before it is read and
                                        before the result is written; a late write is GSYNC_ERR_CHANGED, by name */
    gsync_wire wire;                 /* 0: NATIVE. What travels; see gsync_reducer_set_wire for more than that */
    int checks_finite;               /* 1: all ranks agree whether any reduced gradient holds inf or NaN:
                                        gsync_step_info.found_inf. Implied by a loss scaler */
    int computes_norm;               /* 1: the global norm of the reduced gradients is computed on their way:
                                        gsync_step_info.grad_norm. Costs no pass of its own */
    uint32_t replica_check_interval; /* n > 0: after every n-th step the ranks compare a hash of every gradient;
                                        GSYNC_ERR_MISMATCH names the first that differs */
    gsync_memory memory;             /* 0: AUTO */
    int is_deterministic;            /* 1: on GPUs too sums are made in rank order, by our own kernels, so that the same
                                        gradients give the same bits. On the host they always are */
} gsync_options;
#define GSYNC_OPTIONS_INIT                                                                                             \
    {                                                                                                                  \
        sizeof(gsync_options), GSYNC_STRATEGY_DDP, GSYNC_ORDER_AGREED, 0, 0, GSYNC_MEAN, GSYNC_CLIENT_ACCUMULATES,     \
            GSYNC_WEIGHT_OF_SUMS, GSYNC_DIVIDE_BY_WORLD, 0, 0, 0, 0, GSYNC_WIRE_NATIVE, 0, 0, 0, GSYNC_MEMORY_AUTO, 0  \
    }

/** Not collective. On success the caller owns *reducer. comm must outlive the reducer's last step. */
GSYNC_API gsync_status gsync_reducer_create(gsync_reducer **reducer, gsync_comm *comm, const gsync_options *options);

/**
 * Registers one dense gradient of count elements, in the order of forward. Not collective, before commit only.
 *
 * name is copied; it identifies the gradient in errors and is compared across ranks. grad stays the caller's: the
 * library reads it between ready and finish and writes the result there; it never zeroes, moves or frees it.
 * grad == NULL: the gradient lives in the library's bucket, gsync_reducer_grad gives its address, and nothing is
 * copied at all (unless finds_unused, checks_writes or accumulation in the library need it twice). count == 0 is legal
 * and needs no mark. A shared weight is registered once, see gsync_reducer_set_uses.
 */
GSYNC_API gsync_status gsync_reducer_add(gsync_reducer *reducer, const char *name, void *grad, size_t count,
                                         gsync_dtype dtype);

/**
 * Like gsync_reducer_add, for rows x columns elements whose rows start row_pitch elements apart. What lies between
 * the rows is neither read nor written. Rows and columns are compared across ranks.
 */
GSYNC_API gsync_status gsync_reducer_add_matrix(gsync_reducer *reducer, const char *name, void *grad, size_t rows,
                                                size_t columns, size_t row_pitch, gsync_dtype dtype);

/** Before commit: the gradient becomes final with its uses-th mark in a micro-batch (a weight used several times). */
GSYNC_API gsync_status gsync_reducer_set_uses(gsync_reducer *reducer, const char *name, uint32_t uses);

/**
 * Between steps: freezes (is_trainable 0) or unfreezes a gradient. Frozen gradients are never read, written or sent,
 * and marks for them are refused. All ranks then call gsync_reducer_commit again before the next step. After the first
 * commit GSYNC_ERR_UNSUPPORTED where gradients live in the library's bucket, which cannot change any more.
 */
GSYNC_API gsync_status gsync_reducer_set_trainable(gsync_reducer *reducer, const char *name, int is_trainable);

typedef enum gsync_feedback {
    GSYNC_FEEDBACK_AUTO = 0, /* on for TOPK, off for the others */
    GSYNC_FEEDBACK_ON = 1,
    GSYNC_FEEDBACK_OFF = 2
} gsync_feedback;

/* On a GPU: who adds up what travels in 16 bits. */
typedef enum gsync_wire_sum {
    GSYNC_WIRE_SUM_DIRECT = 0, /* the library, in float32 and in rank order: two roundings, the same bits every time */
    GSYNC_WIRE_SUM_FAST = 1    /* NCCL, in its own order and in these 16 bits: one collective instead of two and no
                                  kernel between, but a rounding for each rank, and a sum that may overflow. Every rank
                                  gets the same bits. For FLOAT16, BFLOAT16, and NATIVE where the gradient has 16 bits
                                  (it changes nothing where it has more); without feedback and is_deterministic */
} gsync_wire_sum;

typedef struct gsync_wire_options {
    size_t struct_size;      /* set by the initializer */
    size_t elements_min;     /* shorter gradients travel native. 0: 1024, for TOPK 16384: what has one dimension, biases
                                and norms, stays dense. 1: none is too short */
    uint32_t warmup_steps;   /* so many synchronised steps travel native first. FLOAT16 needs one at least, to know how
                                large gradients are; float64 ones are made float32 for it from the first step on */
    gsync_feedback feedback; /* error feedback: what rounding lost is added to the next step's gradient. For SGD; with
                                Adam-like optimizers it spoils the second moment (see docs/compression.md) */
    double density;          /* TOPK: the share of elements that travels, in (0, 1]. 0: 0.1 */
    int is_stochastic;       /* INT8: 1: contributions are rounded up or down at random, with the right mean */
    uint64_t seed;           /* is_stochastic: the random numbers follow from it, the step, the rank and the element */
    int is_auto;             /* 1: each bucket tries both ways after the warm-up, and keeps the narrow wire only where
                                it was more than 3 % faster: gsync_bucket_info tells */
    gsync_wire_sum sum;      /* 0: DIRECT. FAST is for gradients on a GPU: with gradients on the host the commit is
                                GSYNC_ERR_UNSUPPORTED. Those of the wire's own type take it without a warm-up, however
                                short they are */
} gsync_wire_options;
#define GSYNC_WIRE_OPTIONS_INIT                                                                                        \
    { sizeof(gsync_wire_options), 0, 0, GSYNC_FEEDBACK_AUTO, 0.0, 0, 0, 0, GSYNC_WIRE_SUM_DIRECT }

/**
 * Before commit: the gradients whose names match the pattern (as the shell matches: *, ?, [...]; NULL: all) travel in
 * this format. Later calls win over earlier ones and over gsync_options.wire; options NULL: the defaults.
 * GSYNC_ERR_UNKNOWN_GRADIENT if no name matches so far. The ranks compare the outcome in gsync_reducer_commit.
 */
GSYNC_API gsync_status gsync_reducer_set_wire(gsync_reducer *reducer, const char *pattern, gsync_wire wire,
                                              const gsync_wire_options *options);

/**
 * Before commit: the gradients whose names match carry state from step to step (momentum in the gradient buffer).
 * Error feedback is refused for them, by gsync_reducer_commit at the latest: it would feed errors back twice.
 */
GSYNC_API gsync_status gsync_reducer_set_carries_momentum(gsync_reducer *reducer, const char *pattern);

/**
 * Collective. The ranks compare names, order, sizes, dtypes and options, then plan the buckets and allocate
 * everything that steps need. GSYNC_ERR_MISMATCH, on every rank, names the first difference and the ranks. Afterwards
 * the set is frozen: adds are GSYNC_ERR_STATE. A set without a single trainable gradient is legal; its steps do
 * nothing.
 */
GSYNC_API gsync_status gsync_reducer_commit(gsync_reducer *reducer);

/**
 * After commit: the address inside the library's bucket that belongs to the gradient, aligned to its element, NULL
 * if there is no such name. Backward may write there directly: no pack, no unpack, but with finds_unused, checks_writes
 * or GSYNC_CLIENT_OVERWRITES. Zero at first. The address stays
 * valid until gsync_reducer_destroy. For gradients registered with an address of their own this returns that address.
 */
GSYNC_API void *gsync_reducer_grad(const gsync_reducer *reducer, const char *name);

/** Between steps: the gradient has moved to grad (NULL: into the library's bucket if it was registered there). */
GSYNC_API gsync_status gsync_reducer_rebind(gsync_reducer *reducer, const char *name, void *grad);

/** gsync_reducer_rebind for all n registered gradients at once, in the order of registration. All or none. */
GSYNC_API gsync_status gsync_reducer_rebind_list(gsync_reducer *reducer, void *const *grads, size_t n);

/** Frees the reducer and sets *reducer to NULL. NULL accepted. Safe at any moment, also in the middle of a step:
 *  the other ranks then get GSYNC_ERR_PEER_LOST. Not collective. */
GSYNC_API void gsync_reducer_destroy(gsync_reducer **reducer);

/* ---- One step ------------------------------------------------------------------------------------------------ */

typedef enum gsync_phase {
    GSYNC_SYNC = 0,      /* the last micro-batch of the window: gradients are reduced */
    GSYNC_ACCUMULATE = 1 /* not the last: nothing is communicated */
} gsync_phase;

/** What a step did. Set struct_size with the initializer before the call. Times are in nanoseconds. */
typedef struct gsync_step_info {
    size_t struct_size;
    uint64_t step;           /* synchronised windows finished so far, this one included */
    uint32_t micro_batches;  /* that this rank contributed to the window */
    uint32_t participants;   /* ranks that contributed at least one micro-batch */
    double divisor;          /* what the sum was divided by; 1 for GSYNC_SUM */
    double weight_total;     /* sum of the window's weights over all ranks */
    size_t bucket_count;     /* buckets of the plan */
    size_t buckets_launched; /* in this step, by this rank */
    size_t buckets_reduced;  /* after a failure: the first buckets_reduced buckets of the plan hold results */
    int has_torn_bucket; /* after a failure: 1 when results were being written into the next bucket: it may mix both */
    uint64_t bytes_reduced; /* of this rank's gradients that took part */
    uint64_t bytes_copied;  /* packed and unpacked, without what this rank adds up where it lies; 0 where gradients live
                               in the library's buckets */
    size_t gradients_unused;        /* finds_unused: gradients that no rank used */
    uint64_t exposed_ns;            /* how long gsync_finish kept the caller */
    uint64_t bytes_wire;            /* sent by this rank to other hosts, as the transport counted them */
    double grad_norm;               /* computes_norm: of all gradients, unscaled; inf or NaN if they are. Else 0 */
    double loss_scale;              /* by which the scaler's gradients were divided; 1 without a scaler */
    int found_inf;                  /* checks_finite, scaler: some gradient holds inf or NaN; the same on all ranks */
    int found_inf_rank;             /* whose gradient it was; -1: finite ones overflowed when they were added up */
    const char *found_inf_gradient; /* its name, valid as long as the reducer; NULL where nothing was found */
    uint64_t values_saturated;      /* finite values beyond a wire's range, over all ranks */
    uint64_t values_flushed;        /* values that a narrow wire made 0, over all ranks; not counted for TOPK */
} gsync_step_info;
#define GSYNC_STEP_INFO_INIT                                                                                           \
    { sizeof(gsync_step_info), 0, 0, 0, 0.0, 0.0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0, 0, 0, 0, 0 }

/**
 * Starts one micro-batch. The phase is sampled here and nowhere else. GSYNC_ERR_STATE if the last one was not
 * finished. Not collective, never waits.
 */
GSYNC_API gsync_status gsync_begin(gsync_reducer *reducer, gsync_phase phase);

/**
 * The gradient registered at this address is final for this micro-batch; the caller no longer writes it until
 * gsync_finish. Optional. Any thread; never waits for other ranks.
 * Gradients of count 0 need no mark; one that shares the address of its successor in a flat buffer must not be marked.
 */
GSYNC_API gsync_status gsync_ready(gsync_reducer *reducer, const void *grad);

/** gsync_ready for n addresses. All are tried; the first failure is returned. */
GSYNC_API gsync_status gsync_ready_list(gsync_reducer *reducer, const void *const *grads, size_t n);

/**
 * GSYNC_WEIGHTED_MEAN: this micro-batch's number of samples or tokens, finite and >= 0. Between gsync_begin and the
 * first mark, in every micro-batch: a forgotten weight is GSYNC_ERR_STATE in gsync_ready and gsync_finish. With other
 * ops it is only reported in gsync_step_info.weight_total.
 */
GSYNC_API gsync_status gsync_set_weight(gsync_reducer *reducer, double weight);

/**
 * Ends the micro-batch. In GSYNC_SYNC: collective; returns when every gradient holds the result. In
 * GSYNC_ACCUMULATE: returns at once (after adding to the accumulators with GSYNC_CLIENT_OVERWRITES). A second call
 * does nothing and returns GSYNC_OK. info may be NULL.
 * Several reducers may be finished in another order on another rank, if all their gradients were marked before and
 * neither finds_unused nor checks_writes is set.
 *
 * With a zero weight total the result is zero. After GSYNC_ERR_TIMEOUT, _PEER_LOST, _ABORTED or _TRANSPORT the
 * reducer must be destroyed; after any other error the next gsync_begin starts a fresh window.
 */
GSYNC_API gsync_status gsync_finish(gsync_reducer *reducer, gsync_step_info *info);

/**
 * Collective with the others' gsync_finish: this rank has no data for this micro-batch. It closes the window with
 * what earlier micro-batches accumulated, or contributes zeros and weight 0 if there were none, and receives the
 * result like the others. With or without a gsync_begin(GSYNC_SYNC) before it; GSYNC_ERR_STATE if gradients were
 * already marked.
 */
GSYNC_API gsync_status gsync_finish_empty(gsync_reducer *reducer, gsync_step_info *info);

/** 1 when the gradient buffers hold a reduced result: between a successful synchronised finish and the next begin. */
GSYNC_API int gsync_is_synced(const gsync_reducer *reducer);

/** finds_unused, after a synchronised finish: 1 if any rank used the gradient in the window, 0 if none did, -1 for an
 *  unknown name, and after gsync_finish_on, of which the host knows nothing. */
GSYNC_API int gsync_is_used(const gsync_reducer *reducer, const char *name);

/* ---- Mixed precision and clipping ------------------------------------------------------------------------------ */

/*
 * The order of a step: synchronise, unscale, look for inf and NaN, norm, clip, step or skip, move the scale.
 *
 *     gsync_scaler *scaler = NULL;
 *     gsync_scaler_create(&scaler, NULL);
 *     gsync_reducer_set_scaler(r, scaler);
 *     for (...) {
 *         gsync_begin(r, GSYNC_SYNC);
 *         backward(loss * gsync_scaler_scale(scaler));
 *         gsync_finish(r, &info);                     // gradients are unscaled now
 *         if (!info.found_inf) {                      // the same on every rank
 *             gsync_clip_grad_norm(r, 1.0, NULL);
 *             optimizer_step();
 *         }
 *         gsync_scaler_update(scaler);
 *     }
 */
typedef struct gsync_scaler gsync_scaler;

typedef struct gsync_scaler_options {
    size_t struct_size;       /* set by the initializer */
    double scale;             /* to start with. 0: 65536. It and all factors and limits are powers of two between
                                 2^-126 and 2^126: scaling then loses nothing */
    double growth_factor;     /* 0: 2. At least 1 */
    double backoff_factor;    /* 0: 0.5. At most 1 */
    uint32_t growth_interval; /* 0: 2000 finite steps in a row */
    double scale_min;         /* 0: 1. The floor */
    double scale_max;         /* 0: 2^24. The ceiling */
    uint32_t skips_max;       /* 0: 100. So many skipped steps in a row at the floor are GSYNC_ERR_DIVERGED */
} gsync_scaler_options;
#define GSYNC_SCALER_OPTIONS_INIT                                                                                      \
    { sizeof(gsync_scaler_options), 0.0, 0.0, 0.0, 0, 0.0, 0.0, 0 }

typedef struct gsync_scaler_state {
    size_t struct_size; /* set by the initializer */
    double scale;
    uint32_t clean_steps;    /* finite ones in a row that count towards growth */
    uint32_t skips_in_a_row; /* with a scale that could not shrink any more */
    uint64_t steps;          /* updates so far */
    uint64_t steps_skipped;
} gsync_scaler_state;
#define GSYNC_SCALER_STATE_INIT                                                                                        \
    { sizeof(gsync_scaler_state), 0.0, 0, 0, 0, 0 }

/** Not collective; every rank makes one, with the same options. One thread at a time uses it. */
GSYNC_API gsync_status gsync_scaler_create(gsync_scaler **scaler, const gsync_scaler_options *options);
/** NULL accepted. Reducers that still use it must not start another step. */
GSYNC_API void gsync_scaler_destroy(gsync_scaler **scaler);
/** What to multiply the loss with. Constant from one gsync_scaler_update to the next, so over a whole window. 1 for
 *  NULL. */
GSYNC_API double gsync_scaler_scale(const gsync_scaler *scaler);

/**
 * Between windows: this reducer's results are divided by the scaler's scale, once, together with the division of the
 * mean, and gsync_step_info.found_inf is agreed by all ranks. A scaler may serve several reducers; NULL: none any more.
 * Ranks whose scales differ get GSYNC_ERR_MISMATCH from the step.
 */
GSYNC_API gsync_status gsync_reducer_set_scaler(gsync_reducer *reducer, gsync_scaler *scaler);

/**
 * Once after each synchronised step of all reducers that use the scaler: moves the scale. If any of them found inf or
 * NaN the scale shrinks, else after growth_interval such calls it grows. Not collective: all ranks know the same.
 * GSYNC_ERR_STATE, with nothing changed, inside an accumulation window, and when no step was finished since the last
 * call. GSYNC_ERR_DIVERGED after skips_max skipped steps in a row at the floor; the scaler stays usable.
 */
GSYNC_API gsync_status gsync_scaler_update(gsync_scaler *scaler);

/** For checkpoints and reports. set_state refuses nonsense with GSYNC_ERR_ARGUMENT, and is GSYNC_ERR_STATE inside an
 *  accumulation window; what steps before it found is forgotten. */
GSYNC_API gsync_status gsync_scaler_get_state(const gsync_scaler *scaler, gsync_scaler_state *state);
GSYNC_API gsync_status gsync_scaler_set_state(gsync_scaler *scaler, const gsync_scaler_state *state);

/**
 * After a synchronised finish: if the global norm of this reducer's gradients (the root of the sum of squares of all
 * trainable ones, in float64) exceeds max_norm, multiplies every gradient by max_norm / norm. *norm (may be NULL) gets
 * the norm before. Not collective: every rank computes the same. Without gsync_options.computes_norm the gradients are
 * read once more for it. GSYNC_ERR_NONFINITE, with *norm set and gradients untouched, if the norm is inf or NaN.
 * GSYNC_ERR_STATE unless gsync_is_synced. On a GPU it waits, and returns what goes wrong there.
 */
GSYNC_API gsync_status gsync_clip_grad_norm(gsync_reducer *reducer, double max_norm, double *norm);

/* ---- Saving what a reducer remembers ----------------------------------------------------------------------------- */

/**
 * Between steps, after commit: what this rank's reducer remembers from step to step, so that training goes on from a
 * checkpoint as if it had not stopped: the residuals of error feedback, the magnitude for FLOAT16, the step number.
 * Each rank saves its own, and loads it into a reducer with the same gradients, wires and world size; anything else is
 * GSYNC_ERR_MISMATCH with nothing changed. Not collective. On a GPU both wait, and return what goes wrong there; and
 * loading, or saving what is owed, is GSYNC_ERR_STATE while the ranks have still to agree on the order of buckets,
 * which they do in the gsync_begin after a first step that ended with gsync_finish_on.
 */
GSYNC_API size_t gsync_state_size(const gsync_reducer *reducer);
GSYNC_API gsync_status gsync_state_save(const gsync_reducer *reducer, void *to, size_t bytes);
GSYNC_API gsync_status gsync_state_load(gsync_reducer *reducer, const void *from, size_t bytes);

/* ---- Looking at the plan -------------------------------------------------------------------------------------- */

typedef struct gsync_bucket_info {
    size_t struct_size;
    size_t gradient_count;
    size_t bytes; /* of the gradients in it */
    gsync_dtype dtype;
    gsync_wire wire;    /* as it travels now; is_auto: NATIVE where the narrow wire did not pay */
    uint64_t native_ns; /* is_auto, once measured: the fastest trial of each way; else 0 */
    uint64_t narrow_ns;
} gsync_bucket_info;
#define GSYNC_BUCKET_INFO_INIT                                                                                         \
    { sizeof(gsync_bucket_info), 0, 0, (gsync_dtype)0, GSYNC_WIRE_NATIVE, 0, 0 }

/** Buckets, in the order in which they are launched. 0 before commit. */
GSYNC_API size_t gsync_bucket_count(const gsync_reducer *reducer);
GSYNC_API gsync_status gsync_bucket_get(const gsync_reducer *reducer, size_t bucket_index, gsync_bucket_info *info);
/** The bucket a gradient travels in; -1 for an unknown or frozen one, or before commit. */
GSYNC_API long gsync_bucket_of(const gsync_reducer *reducer, const char *name);
/** 64-bit digest of the plan: equal on all ranks. 0 before commit. */
GSYNC_API uint64_t gsync_plan_digest(const gsync_reducer *reducer);

/* ---- Learning rate -------------------------------------------------------------------------------------------- */

typedef enum gsync_lr_rule {
    GSYNC_LR_LINEAR = 0, /* k: for SGD with warm-up, up to a batch of about 8192 (Goyal et al., arXiv 1706.02677) */
    GSYNC_LR_SQRT = 1    /* sqrt(k): keeps the update's variance; usual for Adam and LAMB (Krizhevsky, 1404.5997) */
} gsync_lr_rule;

/**
 * The factor for the learning rate when the effective batch (ranks x micro-batches x micro-batch size) goes from old
 * to new. Only returned, never applied. Accumulation that merely replaces micro-batch size changes nothing: the
 * effective batch is the same and the factor is 1. 0 if an argument is not positive and finite.
 */
GSYNC_API double gsync_lr_scale(gsync_lr_rule rule, double old_effective_batch, double new_effective_batch);

#ifdef __cplusplus
}
#endif

#endif
