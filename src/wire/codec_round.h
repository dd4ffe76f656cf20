/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_WIRE_CODEC_ROUND_H
#define GS_WIRE_CODEC_ROUND_H

/* What the codecs have in common. */

#include "wire/codec.h"

/* A codec's round, by way of its encode and decode: see codec.h. */
void gs_codec_round(const gs_codec *codec, float *x, size_t count, const gs_codec_terms *terms, gs_findings *findings);

/* Notes that x[element] is inf or NaN; only the first one's place is kept. findings may be NULL. */
void gs_codec_note_nonfinite(gs_findings *findings, size_t element);

/* Notes elements of the call that are out of the ordinary in nothing but their size: their absmax, and what is 0 now.
 */
void gs_codec_note_finite(gs_findings *findings, float x, bool is_flushed);

#endif
