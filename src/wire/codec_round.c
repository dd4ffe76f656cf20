/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/codec_round.h"

#include <assert.h>

enum { ROUND_ELEMENTS = 4096, ROUND_BYTES = 2 * ROUND_ELEMENTS + ROUND_ELEMENTS / 32 };

void gs_codec_note_nonfinite(gs_findings *findings, size_t element) {
    if (findings != NULL && !findings->has_nonfinite) {
        findings->has_nonfinite = true;
        findings->nonfinite_element = element;
    }
}

void gs_codec_note_finite(gs_findings *findings, float x, bool is_flushed) {
    if (findings != NULL) {
        const float magnitude = gs_float_from_bits(gs_magnitude(x));
        findings->absmax = magnitude > findings->absmax ? magnitude : findings->absmax;
        findings->flushed += is_flushed && magnitude != 0;
    }
}

/* Whole blocks, ROUND_ELEMENTS at most. `first` is the number of x[0] in the call. */
static void round_blocks(const gs_codec *codec, float *x, size_t first, size_t count, const gs_codec_terms *terms,
                         gs_findings *findings) {
    _Alignas(64) unsigned char wire[ROUND_BYTES];
    const bool had_nonfinite = findings != NULL && findings->has_nonfinite;
    gs_codec_terms here = *terms;
    here.element += first;
    codec->encode(wire, x, count, &here, findings);
    if (findings != NULL && findings->has_nonfinite && !had_nonfinite) {
        findings->nonfinite_element += first;
    }
    codec->decode(x, wire, count, &here);
}

void gs_codec_round(const gs_codec *codec, float *x, size_t count, const gs_codec_terms *terms, gs_findings *findings) {
    assert(gs_codec_bytes(codec, ROUND_ELEMENTS) <= ROUND_BYTES);
    const size_t whole = count - count % codec->block;
    for (size_t k = 0; k < whole; k += ROUND_ELEMENTS) {
        const size_t part = whole - k < ROUND_ELEMENTS ? whole - k : ROUND_ELEMENTS;
        round_blocks(codec, x + k, k, part, terms, findings);
    }
    if (whole < count) {
        float last[GS_WIRE_BLOCK] = {0};
        memcpy(last, x + whole, (count - whole) * sizeof(float));
        round_blocks(codec, last, whole, codec->block, terms, findings);
        memcpy(x + whole, last, (count - whole) * sizeof(float));
    }
}
