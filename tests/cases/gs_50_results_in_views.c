/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=1,2 transports=threads,mpi timeout=60 */

/* GS-50: where gradients are views of the library's buckets, results of narrow wires are written into them, in every
 * step, whether the trainer or the library adds up the window. */

#include "wire_trainer.h"

static const gsync_wire wires[] = {GSYNC_WIRE_NATIVE, GSYNC_WIRE_FLOAT16, GSYNC_WIRE_BFLOAT16,
                                   GSYNC_WIRE_INT8,   GSYNC_WIRE_FLOAT8,  GSYNC_WIRE_TOPK};
enum { WIRES = sizeof wires / sizeof *wires };

static void take_six_windows(ranks_context *ctx, gsync_wire wire, gsync_dtype dtype, int micro_batches) {
    static const size_t counts[] = {300, 1, 1025, 64};
    wire_choice choice = {wire, GSYNC_WIRE_OPTIONS_INIT};
    gsync_options options = GSYNC_OPTIONS_INIT;
    ranks_random random = ranks_random_from(ctx->seed, 6);
    wire_trainer *trainer = wire_trainer_new(ctx, counts, 4, dtype);
    choice.options.elements_min = 1;
    options.bucket_bytes_max = 4096;
    options.accumulation = micro_batches > 1 ? GSYNC_CLIENT_OVERWRITES : GSYNC_CLIENT_ACCUMULATES;
    trainer->micro_batches = micro_batches;
    REQUIRE_OK(wire_trainer_open(trainer, ctx->comm, 0, &options, BITS_OWNED, &choice, 1));
    void *const view = trainer->model->tensors[2].grad;
    for (int window = 0; window < 6 && !ranks_has_failed(ctx); window++) {
        REQUIRE_OK(wire_trainer_step(trainer, &random));
        CHECK(gsync_reducer_grad(trainer->model->reducer, trainer->model->tensors[2].name) == view);
    }
    wire_trainer_close(trainer);
}

static void GS_50_views_hold_the_results_of_every_window(ranks_context *ctx) {
    for (size_t i = 0; i < 2 * (size_t)WIRES && !ranks_has_failed(ctx); i++) {
        const gsync_dtype dtype = i % 2 == 0 ? GSYNC_FLOAT32 : GSYNC_BFLOAT16;
        take_six_windows(ctx, wires[i / 2], dtype, 1);
        take_six_windows(ctx, wires[i / 2], dtype, 3);
    }
}

RANKS_MAIN(RANKS_TEST(GS_50_views_hold_the_results_of_every_window))
