/* SPDX-License-Identifier: Apache-2.0 */
#include "api/reducer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/*
 * First one record per rank: did it get ready, how many gradients, which options, a digest of the gradients. Only when
 * digests differ are the gradients themselves compared, to name the first difference. Every rank reads the same
 * records and comes to the same verdict.
 */

enum { OPTION_COUNT = 19 };

static const char *const option_names[OPTION_COUNT] = {"strategy",
                                                       "order",
                                                       "bucket_bytes_max",
                                                       "bucket_bytes_first_max",
                                                       "op",
                                                       "accumulation",
                                                       "weighting",
                                                       "divisor",
                                                       "averages_window",
                                                       "is_strict",
                                                       "finds_unused",
                                                       "checks_writes",
                                                       "timeout_ms",
                                                       "wire",
                                                       "checks_finite",
                                                       "computes_norm",
                                                       "replica_check_interval",
                                                       "memory",
                                                       "is_deterministic"};

typedef struct commit_record {
    int32_t status;
    char text[384];
    uint64_t gradient_count;
    uint64_t gradients_digest;
    uint64_t options[OPTION_COUNT];
    uint64_t has_views;
    uint64_t is_on_device;
} commit_record;

typedef struct gradient_record {
    char name[64]; /* of a longer one its end; name_hash is of all of it */
    uint64_t name_hash;
    uint64_t rows;
    uint64_t columns;
    uint32_t dtype;
    uint32_t uses;
    uint32_t is_trainable;
    uint32_t wire;
    uint64_t wire_digest; /* of its options */
} gradient_record;

static gradient_record record_of(const gsync_reducer *reducer, size_t index) {
    const gs_gradient *gradient = &reducer->gradients[index];
    const gs_plan_gradient *shape = &reducer->shapes[index];
    gradient_record record = {
        .name_hash = gs_host_hash(gradient->name, strlen(gradient->name), 0),
        .rows = gradient->tensor.rows,
        .columns = gradient->tensor.columns,
        .dtype = (uint32_t)shape->dtype,
        .uses = shape->uses,
        .is_trainable = shape->is_trainable,
    };
    /* Long names begin alike: "model.layers.17...", and differ at the end. */
    const gs_wire_rule *rule = &reducer->pipeline.wires[shape->wire];
    record.wire = (uint32_t)rule->wire;
    record.wire_digest = gs_wire_rule_digest(rule);
    const size_t length = strlen(gradient->name);
    const size_t shown = sizeof record.name - sizeof "...";
    if (length < sizeof record.name) {
        memcpy(record.name, gradient->name, length + 1);
    } else {
        snprintf(record.name, sizeof record.name, "...%s", gradient->name + length - shown);
    }
    return record;
}

uint64_t gs_commit_digest(const gsync_reducer *reducer) {
    uint64_t digest = reducer->gradient_count;
    for (size_t i = 0; i < reducer->gradient_count; i++) {
        const gradient_record record = record_of(reducer, i);
        digest = gs_host_hash(&record, sizeof record, digest);
    }
    return digest;
}

static void list_options(const gsync_reducer *reducer, uint64_t *values) {
    const gsync_options *options = &reducer->options;
    const uint64_t all[OPTION_COUNT] = {
        (uint64_t)options->strategy,         (uint64_t)options->order,        options->bucket_bytes_max,
        options->bucket_bytes_first_max,     (uint64_t)options->op,           (uint64_t)options->accumulation,
        (uint64_t)options->weighting,        (uint64_t)options->divisor,      (uint64_t)options->averages_window,
        (uint64_t)options->is_strict,        (uint64_t)options->finds_unused, (uint64_t)options->checks_writes,
        reducer->comm->group->timeout_ms,    (uint64_t)options->wire,         (uint64_t)options->checks_finite,
        (uint64_t)options->computes_norm,    options->replica_check_interval, (uint64_t)options->memory,
        (uint64_t)options->is_deterministic,
    };
    memcpy(values, all, sizeof all);
}

/* ---- what the records say ---- */

static commit_record commit_record_of(const gs_lane *lane, int rank) {
    commit_record record;
    size_t bytes;
    memcpy(&record, gs_lane_mail(lane, rank, &bytes), sizeof record);
    return record;
}

static gsync_status compare_options(const commit_record *other, const commit_record *zero, int rank) {
    for (int i = 0; i < OPTION_COUNT; i++) {
        if (other->options[i] != zero->options[i]) {
            return gs_fail(GSYNC_ERR_MISMATCH,
                           "commit: option %s is %" PRIu64 " on rank %d and %" PRIu64 " on rank 0: it must be the same "
                           "everywhere",
                           option_names[i], other->options[i], rank, zero->options[i]);
        }
    }
    return GSYNC_OK;
}

/* GSYNC_OK with *is_equal false: the gradients have to be looked at one by one. */
static gsync_status compare_records(gsync_reducer *reducer, const gs_lane *lane, bool *is_equal) {
    const int world_size = reducer->comm->group->world_size;
    const commit_record zero = commit_record_of(lane, 0);
    for (int rank = 0; rank < world_size; rank++) {
        const commit_record other = commit_record_of(lane, rank);
        if (other.status != GSYNC_OK) {
            return gs_fail((gsync_status)other.status, "commit: rank %d: %s", rank, other.text);
        }
    }
    *is_equal = true;
    for (int rank = 0; rank < world_size; rank++) {
        reducer->has_views_anywhere = reducer->has_views_anywhere || commit_record_of(lane, rank).has_views != 0;
    }
    for (int rank = 1; rank < world_size; rank++) {
        const commit_record other = commit_record_of(lane, rank);
        if (other.gradient_count != zero.gradient_count) {
            return gs_fail(GSYNC_ERR_MISMATCH,
                           "commit: rank %d registered %" PRIu64 " gradients, rank 0 registered %" PRIu64, rank,
                           other.gradient_count, zero.gradient_count);
        }
        GS_TRY(compare_options(&other, &zero, rank));
        if (other.is_on_device != zero.is_on_device) {
            return gs_fail(GSYNC_ERR_MISMATCH,
                           "commit: the gradients of rank %d are %s and those of rank 0 are not: they must be in the "
                           "same kind of memory everywhere",
                           rank, other.is_on_device != 0 ? "on a GPU" : "on the host");
        }
        *is_equal = *is_equal && other.gradients_digest == zero.gradients_digest;
    }
    return GSYNC_OK;
}

/* ---- gradient by gradient ---- */

static void describe(const gradient_record *record, char *text, size_t size) {
    char shape[64];
    if (record->rows > 1) {
        snprintf(shape, sizeof shape, "%" PRIu64 " x %" PRIu64, record->rows, record->columns);
    } else {
        snprintf(shape, sizeof shape, "%" PRIu64, record->columns);
    }
    const bool is_native = record->wire == GSYNC_WIRE_NATIVE;
    snprintf(text, size, "'%s' (%s x %s%s, %u use%s%s%s)", record->name, gs_dtype_name((gsync_dtype)record->dtype),
             shape, record->is_trainable ? "" : ", frozen", record->uses, record->uses == 1 ? "" : "s",
             is_native ? "" : ", wire ", is_native ? "" : gs_wire_name((gsync_wire)record->wire));
}

static gsync_status compare_gradients(const gs_lane *lane, int world_size, size_t first, size_t count) {
    for (size_t i = 0; i < count; i++) {
        gradient_record zero = {.rows = 0};
        for (int rank = 0; rank < world_size; rank++) {
            gradient_record other;
            size_t bytes;
            const unsigned char *mail = gs_lane_mail(lane, rank, &bytes);
            memcpy(&other, mail + i * sizeof other, sizeof other);
            zero = rank == 0 ? other : zero;
            if (memcmp(&other, &zero, sizeof other) != 0) {
                char here[192];
                char there[192];
                describe(&other, here, sizeof here);
                describe(&zero, there, sizeof there);
                if (strcmp(here, there) == 0) {
                    return gs_fail(GSYNC_ERR_MISMATCH,
                                   "commit: gradient %zu, %s, has other gsync_wire_options on rank %d than on rank 0",
                                   first + i, here, rank);
                }
                return gs_fail(GSYNC_ERR_MISMATCH, "commit: gradient %zu is %s on rank %d and %s on rank 0", first + i,
                               here, rank, there);
            }
        }
    }
    return GSYNC_OK;
}

static gsync_status exchange_gradients(const gsync_reducer *reducer, gs_lane *lane) {
    enum { AT_ONCE = 32 };
    gradient_record records[AT_ONCE];
    for (size_t first = 0; first < reducer->gradient_count; first += AT_ONCE) {
        const size_t left = reducer->gradient_count - first;
        const size_t count = left < AT_ONCE ? left : AT_ONCE;
        for (size_t i = 0; i < count; i++) {
            records[i] = record_of(reducer, first + i);
        }
        const gs_lane_operation operation = {
            .kind = GS_LANE_GATHER,
            .topic = {.what = "commit detail", .part = first},
            .mail = records,
            .mail_bytes = count * sizeof *records,
        };
        GS_TRY(gs_lane_run(lane, &operation, NULL, NULL));
        GS_TRY(compare_gradients(lane, reducer->comm->group->world_size, first, count));
    }
    return gs_fail(GSYNC_ERR_INTERNAL, "commit: digests differ but gradients do not");
}

gsync_status gs_commit_compare(gsync_reducer *reducer, gs_lane *lane, gsync_status own) {
    commit_record record;
    memset(&record, 0, sizeof record);
    record.status = own;
    record.gradient_count = reducer->gradient_count;
    record.gradients_digest = gs_commit_digest(reducer);
    list_options(reducer, record.options);
    record.has_views = reducer->has_views ? 1 : 0;
    record.is_on_device = reducer->stream != NULL ? 1 : 0;
    if (own != GSYNC_OK) {
        snprintf(record.text, sizeof record.text, "%.383s", gsync_last_error());
    }
    const gs_lane_operation operation = {
        .kind = GS_LANE_GATHER, .topic = {.what = "commit"}, .mail = &record, .mail_bytes = sizeof record};
    bool is_equal = false;
    GS_TRY(gs_lane_run(lane, &operation, NULL, NULL));
    GS_TRY(compare_records(reducer, lane, &is_equal));
    return is_equal ? GSYNC_OK : exchange_gradients(reducer, lane);
}
