/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2,3 transports=threads,mpi timeout=60 */

/*
 * GS-55: gradients whose rows do not lie one behind the other. Rows and columns are compared across ranks, the pitch is
 * each rank's own business. A pitch between the elements of a row (a transposed gradient) cannot be said at all.
 */

#include "late_write.h"
#include "ranks.h"

#include <stdio.h>

enum { ROWS = 4, COLUMNS = 4, PITCH = 6 };

/* What lies between the rows; no value of any test, and exact in every dtype. */
static const double PAD = -1536.0;

typedef struct matrix {
    ranks_context *ctx;
    void *data;
    size_t rows;
    size_t columns;
    size_t pitch;
    gsync_dtype dtype;
    size_t tensor; /* tells its values from another matrix's */
} matrix;

static matrix matrix_new(ranks_context *ctx, size_t rows, size_t columns, size_t pitch, gsync_dtype dtype) {
    const matrix result = {ctx, NULL, rows, columns, pitch, dtype, 0};
    matrix made = result;
    made.data = ranks_memory(ctx, rows * pitch * gsync_dtype_size(dtype));
    for (size_t i = 0; i < rows * pitch; i++) {
        ranks_store(made.data, dtype, i, PAD);
    }
    return made;
}

static ranks_source source_of(const matrix *self, uint64_t round) {
    return (ranks_source){.kind = RANKS_INTEGERS, .round = round, .tensor = self->tensor};
}

/* Element k of the matrix, counted along its rows, has the k-th value, wherever it lies. */
static void matrix_fill(const matrix *self, uint64_t round) {
    for (size_t k = 0; k < self->rows * self->columns; k++) {
        ranks_store(self->data, self->dtype, k / self->columns * self->pitch + k % self->columns,
                    ranks_value(self->ctx, source_of(self, round), self->ctx->rank, k));
    }
}

static void matrix_check_mean(const matrix *self, uint64_t round) {
    for (size_t k = 0; k < self->rows * self->columns; k++) {
        const double sum = ranks_sum(self->ctx, self->dtype, source_of(self, round), k);
        const float mean = (float)(sum / self->ctx->world);
        const double expected =
            self->dtype == GSYNC_FLOAT64 ? sum / self->ctx->world : ranks_rounded(self->dtype, (double)mean);
        CHECK_REAL(ranks_load(self->data, self->dtype, k / self->columns * self->pitch + k % self->columns), expected);
    }
}

static void matrix_check_pads(const matrix *self) {
    for (size_t row = 0; row < self->rows; row++) {
        for (size_t column = self->columns; column < self->pitch; column++) {
            CHECK_REAL(ranks_load(self->data, self->dtype, row * self->pitch + column), PAD);
        }
    }
}

static gsync_status matrix_add(const matrix *self, gsync_reducer *reducer, const char *name) {
    return gsync_reducer_add_matrix(reducer, name, self->data, self->rows, self->columns, self->pitch, self->dtype);
}

/* Two matrices and a dense gradient between them, so that a wrong stride shows in its neighbours too. */
static void check_padded(ranks_context *ctx, gsync_dtype dtype, const gsync_options *options) {
    gsync_reducer *reducer = NULL;
    matrix parts[3] = {matrix_new(ctx, ROWS, COLUMNS, PITCH, dtype), matrix_new(ctx, 1, 5, 5, dtype),
                       matrix_new(ctx, 3, 300, 301, dtype)};
    REQUIRE_OK(gsync_reducer_create(&reducer, ctx->comm, options));
    for (size_t i = 0; i < 3; i++) {
        char name[8];
        snprintf(name, sizeof(name), "m%zu", i);
        parts[i].tensor = i;
        REQUIRE_OK(matrix_add(&parts[i], reducer, name));
    }
    REQUIRE_OK(gsync_reducer_commit(reducer));
    for (uint64_t step = 1; step <= 2; step++) {
        REQUIRE_OK(gsync_begin(reducer, GSYNC_SYNC));
        for (size_t i = 3; i-- > 0;) {
            matrix_fill(&parts[i], step);
            CHECK_OK(gsync_ready(reducer, parts[i].data));
        }
        REQUIRE_OK(gsync_finish(reducer, NULL));
        for (size_t i = 0; i < 3; i++) {
            matrix_check_mean(&parts[i], step);
            matrix_check_pads(&parts[i]);
        }
    }
    gsync_reducer_destroy(&reducer);
}

static void GS_55_rows_with_a_pitch_are_reduced_and_pads_left_alone(ranks_context *ctx) {
    static const gsync_dtype dtypes[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        gsync_options options = GSYNC_OPTIONS_INIT;
        check_padded(ctx, dtypes[i], &options);
        options.strategy = GSYNC_STRATEGY_FIXED;
        options.bucket_bytes_max = 1;
        check_padded(ctx, dtypes[i], &options);
        options.accumulation = GSYNC_CLIENT_OVERWRITES;
        check_padded(ctx, dtypes[i], &options);
        options = (gsync_options)GSYNC_OPTIONS_INIT;
        options.finds_unused = 1;
        check_padded(ctx, dtypes[i], &options);
    }
}

static void GS_55_the_pitch_may_differ_between_ranks(ranks_context *ctx) {
    gsync_reducer *reducer = NULL;
    const matrix own = matrix_new(ctx, ROWS, COLUMNS, COLUMNS + (size_t)ctx->rank, GSYNC_FLOAT32);
    REQUIRE_OK(gsync_reducer_create(&reducer, ctx->comm, NULL));
    REQUIRE_OK(matrix_add(&own, reducer, "weight"));
    REQUIRE_OK(gsync_reducer_commit(reducer));
    matrix_fill(&own, 1);
    REQUIRE_OK(gsync_begin(reducer, GSYNC_SYNC));
    REQUIRE_OK(gsync_finish(reducer, NULL));
    matrix_check_mean(&own, 1);
    matrix_check_pads(&own);
    gsync_reducer_destroy(&reducer);
}

/* Left and right half of every row are gradients of their own: what is between one's rows is the other. */
static void GS_55_two_matrices_may_interleave(ranks_context *ctx) {
    gsync_reducer *reducer = NULL;
    matrix left = matrix_new(ctx, 5, 3, 7, GSYNC_FLOAT32);
    matrix right = left;
    right.data = (float *)left.data + 3;
    right.columns = 4;
    right.tensor = 1;
    REQUIRE_OK(gsync_reducer_create(&reducer, ctx->comm, NULL));
    REQUIRE_OK(matrix_add(&left, reducer, "left"));
    REQUIRE_OK(matrix_add(&right, reducer, "right"));
    REQUIRE_OK(gsync_reducer_commit(reducer));
    for (uint64_t step = 1; step <= 2; step++) {
        matrix_fill(&left, step);
        matrix_fill(&right, step);
        REQUIRE_OK(gsync_begin(reducer, GSYNC_SYNC));
        CHECK_OK(gsync_ready(reducer, right.data));
        CHECK_OK(gsync_ready(reducer, left.data));
        REQUIRE_OK(gsync_finish(reducer, NULL));
        matrix_check_mean(&left, step);
        matrix_check_mean(&right, step);
    }
    gsync_reducer_destroy(&reducer);
}

/* A pad is nobody's gradient, so that writing it late is no late write; an element of the last row is one. */
static void GS_55_only_elements_count_as_late_writes(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    gsync_reducer *reducer = NULL;
    const matrix own = matrix_new(ctx, ROWS, COLUMNS, PITCH, GSYNC_FLOAT32);
    options.checks_writes = 1;
    REQUIRE_OK(gsync_reducer_create(&reducer, ctx->comm, &options));
    REQUIRE_OK(matrix_add(&own, reducer, "weight"));
    REQUIRE_OK(gsync_reducer_commit(reducer));
    matrix_fill(&own, 1);
    REQUIRE_OK(gsync_begin(reducer, GSYNC_SYNC));
    CHECK_OK(gsync_ready(reducer, own.data));
    ranks_store(own.data, GSYNC_FLOAT32, COLUMNS, 7.0);
    REQUIRE_OK(gsync_finish(reducer, NULL));
    CHECK_REAL(ranks_load(own.data, GSYNC_FLOAT32, COLUMNS), 7.0);
    matrix_check_mean(&own, 1);
    matrix_fill(&own, 2);
    REQUIRE_OK(gsync_begin(reducer, GSYNC_SYNC));
    CHECK_OK(gsync_ready(reducer, own.data));
    ranks_store(own.data, GSYNC_FLOAT32, (ROWS - 1) * PITCH + COLUMNS - 1, 4097.0);
    CHECK_STATUS(gsync_finish(reducer, NULL), GSYNC_ERR_CHANGED);
    CHECK_CONTAINS(gsync_last_error(), "'weight'");
    gsync_reducer_destroy(&reducer);
}

/* Rank 0 brings rows x columns, the others columns x rows: as many elements, in another order. */
static void GS_55_row_major_against_column_major_is_a_mismatch(ranks_context *ctx) {
    gsync_reducer *reducer = NULL;
    const bool is_transposed = ctx->rank != 0;
    const matrix own = matrix_new(ctx, is_transposed ? 2 : 8, is_transposed ? 8 : 2, 9, GSYNC_FLOAT32);
    REQUIRE_OK(gsync_reducer_create(&reducer, ctx->comm, NULL));
    REQUIRE_OK(matrix_add(&own, reducer, "conv1.weight"));
    CHECK_STATUS(gsync_reducer_commit(reducer), GSYNC_ERR_MISMATCH);
    CHECK_CONTAINS(gsync_last_error(), "'conv1.weight'");
    CHECK_CONTAINS(gsync_last_error(), "8 x 2");
    CHECK_CONTAINS(gsync_last_error(), "2 x 8");
    gsync_reducer_destroy(&reducer);
}

static void GS_55_a_matrix_against_a_dense_gradient_is_a_mismatch(ranks_context *ctx) {
    gsync_reducer *reducer = NULL;
    const matrix own = matrix_new(ctx, ROWS, COLUMNS, COLUMNS, GSYNC_FLOAT32);
    REQUIRE_OK(gsync_reducer_create(&reducer, ctx->comm, NULL));
    if (ctx->rank == 0) {
        REQUIRE_OK(gsync_reducer_add(reducer, "weight", own.data, (size_t)ROWS * COLUMNS, GSYNC_FLOAT32));
    } else {
        REQUIRE_OK(matrix_add(&own, reducer, "weight"));
    }
    CHECK_STATUS(gsync_reducer_commit(reducer), GSYNC_ERR_MISMATCH);
    CHECK_CONTAINS(gsync_last_error(), "'weight'");
    gsync_reducer_destroy(&reducer);
}

static void GS_55_a_pitch_below_the_row_is_refused_by_name(ranks_context *ctx) {
    gsync_reducer *reducer = NULL;
    const matrix own = matrix_new(ctx, ROWS, COLUMNS, PITCH, GSYNC_FLOAT32);
    REQUIRE_OK(gsync_reducer_create(&reducer, ctx->comm, NULL));
    CHECK_STATUS(gsync_reducer_add_matrix(reducer, "narrow", own.data, ROWS, COLUMNS, COLUMNS - 1, GSYNC_FLOAT32),
                 GSYNC_ERR_ARGUMENT);
    CHECK_CONTAINS(gsync_last_error(), "'narrow'");
    CHECK_STATUS(gsync_reducer_add_matrix(reducer, "view", NULL, ROWS, COLUMNS, PITCH, GSYNC_FLOAT32),
                 GSYNC_ERR_ARGUMENT);
    CHECK_CONTAINS(gsync_last_error(), "'view'");
    gsync_reducer_destroy(&reducer);
}

RANKS_MAIN(RANKS_TEST(GS_55_rows_with_a_pitch_are_reduced_and_pads_left_alone),
           RANKS_TEST(GS_55_the_pitch_may_differ_between_ranks), RANKS_TEST(GS_55_two_matrices_may_interleave),
           LATE_WRITE_TEST(GS_55_only_elements_count_as_late_writes),
           RANKS_TEST_WITH(GS_55_row_major_against_column_major_is_a_mismatch, .world_min = 2),
           RANKS_TEST_WITH(GS_55_a_matrix_against_a_dense_gradient_is_a_mismatch, .world_min = 2),
           RANKS_TEST(GS_55_a_pitch_below_the_row_is_refused_by_name))
