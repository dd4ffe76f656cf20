/* SPDX-License-Identifier: Apache-2.0 */
#include "collective/shard.h"

#include "base/convert.h"
#include "base/float_mode.h"
#include "base/kernels.h"

#include <assert.h>
#include <math.h>

static bool rounds(const gs_shard_job *job) {
    return job->source_dtype == GSYNC_FLOAT32 && job->rounding.to != GS_ROUND_NOT;
}

/* Though it may be looked at. */
static bool leaves_data_alone(const gs_shard_job *job) {
    return job->source_count == 1 && job->target_count == 1 && job->sources[0] == job->targets[0] &&
           job->source_dtype == job->target_dtype && job->divisor == 1.0 && !rounds(job);
}

static const unsigned char *at(const void *base, size_t index, gsync_dtype dtype) {
    return (const unsigned char *)base + index * gsync_dtype_size(dtype);
}

/* ---- wide = wide op source ---- */

static void combine_floats(float *wide, const float *other, gsync_op op, size_t count) {
    const gs_kernels *const kernels = gs_kernels_best();
    if (op == GSYNC_MIN) {
        kernels->min_f32(wide, other, count);
    } else if (op == GSYNC_MAX) {
        kernels->max_f32(wide, other, count);
    } else {
        kernels->add_f32(wide, other, count);
    }
}

static void combine_doubles(double *wide, const double *other, gsync_op op, size_t count) {
    const gs_kernels *const kernels = gs_kernels_best();
    if (op == GSYNC_MIN) {
        kernels->min_f64(wide, other, count);
    } else if (op == GSYNC_MAX) {
        kernels->max_f64(wide, other, count);
    } else {
        kernels->add_f64(wide, other, count);
    }
}

static void combine_integers(int64_t *restrict wide, const int64_t *restrict other, gsync_op op, size_t count) {
    for (size_t k = 0; k < count; k++) {
        if (op == GSYNC_MIN) {
            wide[k] = other[k] < wide[k] ? other[k] : wide[k];
        } else if (op == GSYNC_MAX) {
            wide[k] = other[k] > wide[k] ? other[k] : wide[k];
        } else {
            /* Unsigned, because a sum that overflows wraps rather than being undefined. */
            wide[k] = (int64_t)((uint64_t)wide[k] + (uint64_t)other[k]);
        }
    }
}

static void combine(gs_wide_block *restrict wide, const void *source, gsync_dtype dtype, gsync_op op, size_t count) {
    if (dtype == GSYNC_FLOAT32) {
        combine_floats(wide->f, source, op, count);
        return;
    }
    if (dtype == GSYNC_FLOAT64) {
        combine_doubles(wide->d, source, op, count);
        return;
    }
    gs_wide_block other;
    gs_widen(&other, source, dtype, count);
    if (gs_dtype_is_floating(dtype)) {
        combine_floats(wide->f, other.f, op, count);
    } else {
        combine_integers(wide->i, other.i, op, count);
    }
}

/* ---- wide = wide / divisor ---- */

static void divide(gs_wide_block *wide, gsync_dtype wide_dtype, double divisor, size_t count) {
    if (divisor == 1.0) {
        return;
    }
    if (wide_dtype == GSYNC_FLOAT32) {
        gs_kernels_best()->divide_f32(wide->f, gs_division_by(divisor), count);
    } else if (wide_dtype == GSYNC_FLOAT64) {
        gs_kernels_best()->divide_f64(wide->d, gs_division_by(divisor), count);
    }
}

/* ---- one job ---- */

/* The commonest case without the detour over a block: each buffer is read once and written once. */
static bool reduce_directly(const gs_shard_job *job) {
    const bool is_wide = job->source_dtype == GSYNC_FLOAT32 || job->source_dtype == GSYNC_FLOAT64;
    if (!is_wide || job->target_dtype != job->source_dtype || job->op != GSYNC_SUM || job->source_count == 0 ||
        job->divisor == 0.0) {
        return false;
    }
    const gs_reduction reduction = {.sources = job->sources,
                                    .source_count = job->source_count,
                                    .targets = job->targets,
                                    .target_count = leaves_data_alone(job) ? 0 : job->target_count,
                                    .division = gs_division_by(job->divisor),
                                    .first = job->first,
                                    .count = job->count,
                                    .rounding = job->rounding,
                                    .findings = job->findings};
    if (job->source_dtype == GSYNC_FLOAT32) {
        gs_kernels_best()->reduce_f32(&reduction);
    } else {
        gs_kernels_best()->reduce_f64(&reduction);
    }
    return true;
}

/* ---- what is found in a block ---- */

static int source_of_nonfinite(const gs_shard_job *job, size_t index) {
    for (int s = 0; s < job->source_count; s++) {
        gs_wide_block one;
        gs_widen(&one, at(job->sources[s], index, job->source_dtype), job->source_dtype, 1);
        if (!isfinite(one.f[0])) {
            return s;
        }
    }
    return -1;
}

/* Of elements as they are stored: a sum may overflow only in the type of the target. They are not stored yet, since
 * targets may be the sources. */
static void find(const gs_shard_job *job, const gs_wide_block *narrow, size_t first, size_t count) {
    gs_wide_block results;
    gs_widen(&results, narrow, job->target_dtype, count);
    const void *const source = results.f;
    gs_findings *const findings = job->findings;
    const bool had_nonfinite = findings->has_nonfinite;
    gs_kernels_best()->reduce_f32(&(gs_reduction){
        .sources = &source, .source_count = 1, .division = gs_division_by(1.0), .count = count, .findings = findings});
    if (findings->has_nonfinite && !had_nonfinite) {
        const size_t index = first + findings->nonfinite_element;
        findings->nonfinite_element = index - job->first;
        findings->nonfinite_source = source_of_nonfinite(job, index);
    }
}

static bool is_looked_at(const gs_shard_job *job) {
    return job->findings != NULL && gs_dtype_wide(job->source_dtype) == GSYNC_FLOAT32;
}

static void store_block(const gs_shard_job *job, const gs_wide_block *wide, size_t first, size_t count) {
    if (is_looked_at(job)) {
        gs_wide_block narrow;
        gs_narrow(&narrow, wide, job->target_dtype, count);
        find(job, &narrow, first, count);
    }
    const int target_count = leaves_data_alone(job) ? 0 : job->target_count;
    for (int t = 0; t < target_count; t++) {
        gs_narrow((void *)at(job->targets[t], first, job->target_dtype), wide, job->target_dtype, count);
    }
}

static void reduce_block(const gs_shard_job *job, size_t first, size_t count) {
    gs_wide_block wide;
    if (job->source_count == 0 || job->divisor == 0.0) {
        memset(&wide, 0, sizeof wide);
    } else {
        gs_widen(&wide, at(job->sources[0], first, job->source_dtype), job->source_dtype, count);
        for (int s = 1; s < job->source_count; s++) {
            combine(&wide, at(job->sources[s], first, job->source_dtype), job->source_dtype, job->op, count);
        }
        divide(&wide, gs_dtype_wide(job->source_dtype), job->divisor, count);
    }
    store_block(job, &wide, first, count);
}

/* ---- looking ---- */

static void look_at_block(const float *x, size_t first, size_t count, gsync_dtype dtype, gs_findings *found) {
    const gs_kernels *const kernels = gs_kernels_best();
    gs_wide_block wide;
    uint16_t narrow[GS_BLOCK];
    gs_widen(&wide, x + first, GSYNC_FLOAT32, count);
    if (gs_dtype_wide(dtype) != dtype) {
        gs_narrow(narrow, &wide, dtype, count);
        gs_widen(&wide, narrow, dtype, count);
    }
    found->square_sum += kernels->square_sum_f32(wide.f, count);
    if (!found->has_nonfinite && !kernels->is_finite_f32(wide.f, count)) {
        size_t k = 0;
        while (isfinite(wide.f[k])) {
            k++;
        }
        found->has_nonfinite = true;
        found->nonfinite_element = first + k;
    }
}

void gs_shard_look(const float *x, size_t count, gsync_dtype dtype, gs_findings *found) {
    for (size_t done = 0; done < count; done += GS_BLOCK) {
        look_at_block(x, done, count - done < GS_BLOCK ? count - done : GS_BLOCK, dtype, found);
    }
}

bool gs_shard_changes_nothing(const gs_shard_job *job) {
    return leaves_data_alone(job) && job->findings == NULL;
}

static void reduce(const gs_shard_job *job) {
    if (reduce_directly(job)) {
        return;
    }
    assert(!rounds(job) || job->source_count == 0 || job->divisor == 0.0);
    for (size_t done = 0; done < job->count; done += GS_BLOCK) {
        const size_t left = job->count - done;
        reduce_block(job, job->first + done, left < GS_BLOCK ? left : GS_BLOCK);
    }
}

void gs_shard_reduce(const gs_shard_job *job) {
    if (!gs_shard_changes_nothing(job)) {
        gs_float_mode mode;
        gs_float_mode_enter(&mode);
        reduce(job);
        gs_float_mode_leave(&mode);
    }
}

void gs_shard_split(size_t count, int parts, int index, size_t *first, size_t *length) {
    gs_shard_split_blocks(count, 1, parts, index, first, length);
}

void gs_shard_split_blocks(size_t count, size_t block, int parts, int index, size_t *first, size_t *length) {
    const size_t line = block > 64 ? block : 64; /* elements: whole cache lines for every dtype */
    const size_t lines = (count + line - 1) / line;
    const size_t per_part = (lines + (size_t)parts - 1) / (size_t)parts * line;
    const size_t begin = per_part * (size_t)index;
    *first = begin < count ? begin : count;
    *length = count - *first < per_part ? count - *first : per_part;
}
