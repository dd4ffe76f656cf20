/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2 transports=threads,mpi timeout=60 */

/* GS-35: every finite float16 plus each of 64 others: the float32 sum rounded to nearest even, infinite only when that
 * is beyond the type. */

#include "sanitized.h"
#include "serial_oracle.h"

#include <string.h>

enum { FINITE = 63488, COUNT = FINITE + 1, PARTNERS = 64 }; /* an odd length, so that there is a tail */

static uint16_t partner_of(size_t index) {
    static const uint16_t chosen[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x83ff, 0x0400, 0x8400,
                                      0x3c00, 0xbc00, 0x7bff, 0xfbff, 0x7bfe, 0xfbfe, 0x4c00, 0x5400};
    const size_t known = sizeof chosen / sizeof *chosen;
    const uint16_t any = (uint16_t)(index * 2654435761u >> 7);
    return index < known ? chosen[index] : (any & 0x7c00u) == 0x7c00u ? any & 0xbfffu : any;
}

static uint16_t finite_half(size_t index) {
    const uint16_t magnitude = (uint16_t)(index % (FINITE / 2));
    return index % FINITE < FINITE / 2 ? magnitude : (uint16_t)(magnitude | 0x8000u);
}

static void GS_35_every_pair_of_halves_is_added_and_rounded_once(ranks_context *ctx) {
    const size_t count = COUNT;
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.op = GSYNC_SUM;
    ranks_model *model = ranks_model_new(ctx, &count, 1, GSYNC_FLOAT16);
    uint16_t *expected = ranks_memory(ctx, COUNT * sizeof *expected);
    uint16_t *grad = model->tensors[0].grad;
    REQUIRE_OK(ranks_model_open(model, &options));
    for (size_t p = 0; p < PARTNERS && !ranks_has_failed(ctx); p += SANITIZED ? 8 : 1) {
        const uint16_t partner = partner_of(p);
        for (size_t k = 0; k < COUNT; k++) {
            const uint16_t own = finite_half(k);
            const double sum = ranks_load(&own, GSYNC_FLOAT16, 0) + ranks_load(&partner, GSYNC_FLOAT16, 0);
            expected[k] = oracle_narrowed(GSYNC_FLOAT16, (float)sum);
            grad[k] = ctx->rank == 0 ? own : partner;
        }
        REQUIRE_OK(ranks_model_step(model, NULL, NULL));
        CHECK_BITS(GSYNC_FLOAT16, grad, expected, COUNT, "sum");
    }
}

RANKS_MAIN(RANKS_TEST_WITH(GS_35_every_pair_of_halves_is_added_and_rounded_once, .world_min = 2, .world_max = 2))
