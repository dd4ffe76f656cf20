/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_WIRE_WIRE_RULE_H
#define GS_WIRE_WIRE_RULE_H

#include "wire/codec.h"

/* How some gradients of a reducer travel: gsync_wire_options with every default filled in. */
typedef struct gs_wire_rule {
    gsync_wire wire;
    const gs_codec *codec; /* NULL: NATIVE and TOPK */
    size_t elements_min;
    uint32_t warmup_steps;
    bool has_feedback;
    bool is_stochastic;
    bool is_auto;
    gsync_wire_sum sum;
    double density;
    uint64_t seed;
} gs_wire_rule;

/* options NULL: the defaults. Refuses nonsense, and what has no meaning for the wire, by name. */
gsync_status gs_wire_rule_make(gs_wire_rule *rule, gsync_wire wire, const gsync_wire_options *options);

bool gs_wire_rule_is_same(const gs_wire_rule *a, const gs_wire_rule *b);

/* Of everything that the ranks must agree on. */
uint64_t gs_wire_rule_digest(const gs_wire_rule *rule);

/* Does a gradient travel so? A gradient whose own type is the wire's travels as it is. */
bool gs_wire_rule_covers(const gs_wire_rule *rule, size_t count, gsync_dtype dtype);

/* Does it travel as it is, and the transport adds it up in its own 16 bits? */
bool gs_wire_rule_is_fast_as_it_is(const gs_wire_rule *rule, gsync_dtype dtype);

/* Elements that travel together. */
uint32_t gs_wire_rule_block(const gs_wire_rule *rule);

/* TOPK: how many of count elements travel; at least 1. */
size_t gs_wire_rule_kept(const gs_wire_rule *rule, size_t count);

const char *gs_wire_name(gsync_wire wire);

#endif
