/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Trains a small GPT on one rank or on many, with the same result. What has to do with several ranks is in this file,
 * and in compression.c what has to do with narrow wires: look for gsync_. The model, the optimizer and the rest would
 * be the same without.
 */

#include "checkpoint.h"
#include "compression.h"
#include "console.h"
#include "curve.h"
#include "hash.h"
#include "model.h"
#include "optimizer.h"
#include "replicas.h"
#include "sampler.h"
#include "settings.h"
#include "text.h"
#include "validation.h"

#include <gradsync/gradsync.h>

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef struct trainer {
    settings settings;
    gsync_comm *comm;
    gsync_reducer *reducer;
    gsync_status ready_status; /* the first failure of gsync_ready in a backward pass */
    int rank;
    int ranks;

    text text;
    model model;
    optimizer optimizer;
    int32_t *tokens; /* of one micro-batch */
    int32_t *targets;
    replica_list replicas;
    int64_t step; /* the last finished one */

    console console;
    curve curve;
    FILE *log;
    uint64_t waited_ns;
} trainer;

typedef struct step_result {
    double loss; /* mean over the global batch */
    double gradient_norm;
    uint64_t bytes_wire; /* sent to other hosts by this rank */
    uint64_t values_saturated;
    uint64_t values_flushed;
} step_result;

/* ---- Failures ---------------------------------------------------------------------------------------------- */

/* Always false, to be returned at once. */
static bool fail(const trainer *t, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "rank %d: ", t->rank);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    return false;
}

static bool is_ok(const trainer *t, gsync_status status) {
    if (status == GSYNC_OK) {
        return true;
    }
    return fail(t, "%s: %s", gsync_status_name(status), gsync_last_error());
}

/* ---- Who computes what ------------------------------------------------------------------------------------- */

typedef struct share {
    int first;
    int count;
} share;

/* Part `index` of `parts`. Where they cannot be equal, the first ones get one more. */
static share part_of(share whole, int parts, int index) {
    const int each = whole.count / parts;
    const int more = whole.count % parts;
    return (share){whole.first + index * each + (index < more ? index : more), each + (index < more ? 1 : 0)};
}

/* The sequences, numbered within the global batch, of one micro-batch of this rank. */
static share my_share(const trainer *t, int micro_batch) {
    const share global = {0, t->settings.global_batch};
    return part_of(part_of(global, t->ranks, t->rank), t->settings.accumulate, micro_batch);
}

/* What step `step` trains on depends on the seed and the global batch, not on how many ranks share it. */
static void load_micro_batch(trainer *t, int64_t step, share mine) {
    const size_t context = (size_t)t->settings.shape.context;
    for (int i = 0; i < mine.count; i++) {
        const uint64_t sample = (uint64_t)(step - 1) * (uint64_t)t->settings.global_batch + (uint64_t)(mine.first + i);
        text_sample(&t->text, t->settings.seed, sample, t->settings.shape.context, t->tokens + (size_t)i * context,
                    t->targets + (size_t)i * context);
    }
}

/* ---- One step ---------------------------------------------------------------------------------------------- */

/* Backward calls this for each gradient that is final: it may now travel while backward goes on. */
static void on_gradient_final(void *user, const float *gradient) {
    trainer *t = user;
    const gsync_status status = gsync_ready(t->reducer, gradient);
    if (t->ready_status == GSYNC_OK) {
        t->ready_status = status;
    }
}

/*
 * Gradients are sums over tokens, and a micro-batch's weight is its number of tokens. The library divides the sum of
 * all gradients by the sum of all weights: the mean over the global batch, also when it is shared out unevenly.
 */
static bool run_micro_batch(trainer *t, int64_t step, int index, double *loss_sum, gsync_step_info *info) {
    const bool is_last = index == t->settings.accumulate - 1;
    const share mine = my_share(t, index);
    const double token_count = (double)mine.count * (double)t->settings.shape.context;
    load_micro_batch(t, step, mine);

    model_forward(&t->model, t->tokens, mine.count);
    *loss_sum += model_loss(&t->model, t->targets);

    if (!is_ok(t, gsync_begin(t->reducer, is_last ? GSYNC_SYNC : GSYNC_ACCUMULATE)) ||
        !is_ok(t, gsync_set_weight(t->reducer, token_count))) {
        return false;
    }
    model_backward(&t->model, t->tokens, on_gradient_final, t);
    if (!is_ok(t, t->ready_status) || !is_ok(t, gsync_finish(t->reducer, info))) {
        return false;
    }
    t->waited_ns += info->exposed_ns;
    return true;
}

static bool run_step(trainer *t, int64_t step, step_result *result) {
    double loss = 0.0;
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    model_zero_gradients(&t->model);
    for (int i = 0; i < t->settings.accumulate; i++) {
        if (!run_micro_batch(t, step, i, &loss, &info)) {
            return false;
        }
    }
    if (!is_ok(t, gsync_allreduce(t->comm, &loss, 1, GSYNC_FLOAT64, GSYNC_SUM))) {
        return false;
    }
    result->loss = loss / ((double)t->settings.global_batch * (double)t->settings.shape.context);
    result->bytes_wire = info.bytes_wire;
    result->values_saturated = info.values_saturated;
    result->values_flushed = info.values_flushed;
    result->gradient_norm = info.grad_norm; /* of the window's mean; micro-batches before the last have none */
    if (!isfinite(result->loss) || !isfinite(result->gradient_norm)) {
        return fail(t, "step %lld: the loss is %g and the gradient norm %g; try a smaller --lr, or --clip 1",
                    (long long)step, result->loss, result->gradient_norm);
    }
    if (t->settings.clip > 0.0 && !is_ok(t, gsync_clip_grad_norm(t->reducer, t->settings.clip, NULL))) {
        return false;
    }
    optimizer_step(&t->optimizer, &t->model, step);
    t->step = step;
    return true;
}

/* ---- Checkpoints ------------------------------------------------------------------------------------------- */

static checkpoint_identity identity_of(const trainer *t) {
    return (checkpoint_identity){
        .shape = t->model.shape,
        .optimizer = t->settings.optimizer,
        .wire = (int)t->settings.wire,
        .seed = t->settings.seed,
        .global_batch = t->settings.global_batch,
        .text_hash = text_hash(&t->text),
    };
}

/* What all ranks hold alike rank 0 writes; with a narrow wire each also has something of its own. */
static bool save_mine(const trainer *t) {
    const char *path = t->settings.checkpoint;
    checkpoint_reason reason;
    if (t->settings.wire != GSYNC_WIRE_NATIVE && !compression_save(t->reducer, path, t->rank, t->step, &reason)) {
        return fail(t, "%s", reason.words);
    }
    const checkpoint_identity identity = identity_of(t);
    if (t->rank == 0 && !checkpoint_write(path, &identity, t->step, &t->model, &t->optimizer, &reason)) {
        return fail(t, "%s", reason.words);
    }
    return true;
}

/* All learn how it went, since they have to stop as well if it failed anywhere. */
static bool save(trainer *t) {
    int64_t is_saved = save_mine(t) ? 1 : 0;
    return is_ok(t, gsync_allreduce(t->comm, &is_saved, 1, GSYNC_INT64, GSYNC_MIN)) && is_saved == 1;
}

static bool is_save_due(const trainer *t) {
    const settings *s = &t->settings;
    return s->checkpoint != NULL &&
           (t->step == s->steps || (s->checkpoint_every > 0 && t->step % s->checkpoint_every == 0));
}

/* ---- Setting up -------------------------------------------------------------------------------------------- */

/* Rank 0 reads the text and the others get it from there: the file need not exist on every host. */
static bool share_text(trainer *t) {
    int64_t length = -1;
    if (t->rank == 0) {
        char reason[512];
        if (text_read(&t->text, t->settings.text, reason, sizeof reason)) {
            length = (int64_t)t->text.length;
        } else {
            fail(t, "%s", reason);
        }
    }
    if (!is_ok(t, gsync_broadcast(t->comm, &length, 1, GSYNC_INT64, 0)) || length < 0) {
        return false;
    }
    if (t->rank != 0 && !text_allocate(&t->text, (size_t)length)) {
        return fail(t, "not enough memory for the text");
    }
    if (!is_ok(t, gsync_broadcast(t->comm, t->text.bytes, (size_t)length, GSYNC_UINT8, 0))) {
        return false;
    }
    text_find_vocabulary(&t->text);
    if (t->settings.validates) {
        text_hold_out(&t->text);
    }
    const size_t context = (size_t)t->settings.shape.context;
    if (t->text.length <= context || (t->settings.validates && t->text.held_out <= context)) {
        return fail(t, "the text %s has %lld characters; --context %d%s needs more", t->settings.text,
                    (long long)length, t->settings.shape.context, t->settings.validates ? " with --validate" : "");
    }
    return true;
}

static bool build_model(trainer *t) {
    const settings *s = &t->settings;
    const share largest = part_of(part_of((share){0, s->global_batch}, t->ranks, 0), s->accumulate, 0);
    const size_t tokens = (size_t)largest.count * (size_t)s->shape.context;
    model_shape shape = s->shape;
    shape.vocabulary = t->text.vocabulary;
    t->tokens = calloc(tokens, sizeof *t->tokens);
    t->targets = calloc(tokens, sizeof *t->targets);
    if (t->tokens == NULL || t->targets == NULL || !model_create(&t->model, shape, largest.count) ||
        !optimizer_create(&t->optimizer, s->optimizer, s->learning_rate, s->momentum, t->model.parameter_count)) {
        return fail(t, "not enough memory for the model and %d sequences of %d characters", largest.count,
                    s->shape.context);
    }
    return true;
}

static bool register_gradients(trainer *t) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    options.op = GSYNC_WEIGHTED_MEAN;
    options.computes_norm = 1;
    options.strategy = t->settings.strategy;
    options.bucket_bytes_max = t->settings.bucket_bytes;
    if (!is_ok(t, gsync_reducer_create(&t->reducer, t->comm, &options))) {
        return false;
    }
    for (size_t i = 0; i < t->model.tensor_count; i++) {
        const tensor *slice = &t->model.tensors[i];
        if (!is_ok(t, gsync_reducer_add(t->reducer, slice->name, t->model.gradients + slice->offset, slice->count,
                                        GSYNC_FLOAT32))) {
            return false;
        }
    }
    return is_ok(t, compression_choose(t->reducer, &t->settings)) && is_ok(t, gsync_reducer_commit(t->reducer));
}

/* Rank 0 draws the parameters, or reads them from a checkpoint, and every rank starts from its copy of them. */
static bool share_parameters(trainer *t) {
    int64_t step = 0;
    if (t->rank == 0 && t->settings.resume == NULL) {
        model_initialize(&t->model, t->settings.seed);
    } else if (t->rank == 0) {
        const checkpoint_identity identity = identity_of(t);
        checkpoint_reason reason;
        if (!checkpoint_read(t->settings.resume, &identity, &t->model, &t->optimizer, &step, &reason)) {
            fail(t, "%s", reason.words);
            step = -1;
        }
    }
    const size_t count = t->model.parameter_count;
    if (!is_ok(t, gsync_broadcast(t->comm, &step, 1, GSYNC_INT64, 0)) || step < 0 ||
        !is_ok(t, gsync_broadcast(t->comm, t->model.parameters, count, GSYNC_FLOAT32, 0))) {
        return false;
    }
    for (int i = 0; step > 0 && i < t->optimizer.state_count; i++) {
        if (!is_ok(t, gsync_broadcast(t->comm, t->optimizer.states[i], count, GSYNC_FLOAT32, 0))) {
            return false;
        }
    }
    t->step = step;
    return true;
}

/* After the parameters, and thus the step that is gone on from, are known. */
static bool restore_wire(const trainer *t) {
    const settings *s = &t->settings;
    checkpoint_reason reason;
    return s->resume == NULL || s->wire == GSYNC_WIRE_NATIVE ||
           compression_load(t->reducer, s->resume, t->rank, t->step, &reason) || fail(t, "%s", reason.words);
}

/* All files are tried before the training: a wrong path should not cost a day. */
static bool open_outputs(trainer *t) {
    const settings *s = &t->settings;
    checkpoint_reason reason;
    bool has_picture = false;
    if (t->rank != 0) {
        return true;
    }
    if (s->checkpoint != NULL && !checkpoint_is_writable(s->checkpoint, &reason)) {
        return fail(t, "%s", reason.words);
    }
    if (s->curve != NULL && !curve_write(&t->curve, s->curve, "", &has_picture)) {
        return fail(t, "no curve can be written");
    }
    if (s->log == NULL) {
        return true;
    }
    t->log = fopen(s->log, "w");
    if (t->log == NULL) {
        return fail(t, "cannot create the log %s: %s", s->log, strerror(errno));
    }
    fprintf(t->log, "step,loss,gradient_norm,parameter_hash,bytes_wire,values_saturated,values_flushed\n");
    return true;
}

static bool set_up(trainer *t) {
    return share_text(t) && build_model(t) && register_gradients(t) && share_parameters(t) && restore_wire(t) &&
           (replicas_list(&t->replicas, &t->model) || fail(t, "not enough memory")) && open_outputs(t);
}

/* ---- The run ----------------------------------------------------------------------------------------------- */

static void introduce(const trainer *t) {
    const settings *s = &t->settings;
    if (t->rank != 0 || s->is_quiet) {
        return;
    }
    printf("text:  %zu characters, %d different\n", t->text.length, t->text.vocabulary);
    printf("model: %d blocks of width %d with %d heads, %zu parameters in %zu tensors\n", s->shape.layers,
           s->shape.width, s->shape.heads, t->model.parameter_count, t->model.tensor_count);
    printf("ranks: %s; gradients travel in %zu bucket%s\n", gsync_comm_describe(t->comm),
           gsync_bucket_count(t->reducer), gsync_bucket_count(t->reducer) == 1 ? "" : "s");
    printf("step:  %d sequences of %d characters over %d rank%s, in %d micro-batch%s\n", s->global_batch,
           s->shape.context, t->ranks, t->ranks == 1 ? "" : "s", s->accumulate, s->accumulate == 1 ? "" : "es");
    if (t->step > 0) {
        printf("start: after step %lld, from %s\n", (long long)t->step, s->resume);
    }
    fflush(stdout);
}

static bool record(trainer *t, step_result result) {
    console_step(&t->console, t->step, result.loss, result.gradient_norm);
    if (t->log != NULL) {
        const uint64_t hash = hash_bytes(t->model.parameters, t->model.parameter_count * sizeof(float));
        fprintf(t->log, "%lld,%.9g,%.9g,%016llx,%llu,%llu,%llu\n", (long long)t->step, result.loss,
                result.gradient_norm, (unsigned long long)hash, (unsigned long long)result.bytes_wire,
                (unsigned long long)result.values_saturated, (unsigned long long)result.values_flushed);
    }
    if (t->rank != 0 || t->settings.curve == NULL) {
        return true;
    }
    const curve_point point = {t->step, result.loss, result.gradient_norm};
    return curve_add(&t->curve, point) || fail(t, "not enough memory for the curve");
}

static bool train(trainer *t) {
    const settings *s = &t->settings;
    t->console.is_speaker = t->rank == 0;
    t->console.is_quiet = s->is_quiet;
    console_start(&t->console, t->step + 1, s->steps, (double)s->global_batch * (double)s->shape.context);
    while (t->step < s->steps) {
        step_result result;
        if (!run_step(t, t->step + 1, &result)) {
            return false;
        }
        if (s->verifies && !is_ok(t, gsync_check_replicas(t->comm, t->replicas.names, t->replicas.buffers,
                                                          t->replicas.bytes, t->model.tensor_count))) {
            return false;
        }
        if (!record(t, result) || (is_save_due(t) && !save(t))) {
            return false;
        }
    }
    console_finish(&t->console, 1e-9 * (double)t->waited_ns);
    return true;
}

/* What only rank 0 does after the training. */
static bool write_results(trainer *t) {
    const settings *s = &t->settings;
    if (t->log != NULL && (fflush(t->log) != 0 || ferror(t->log) != 0)) {
        return fail(t, "cannot write the log %s", s->log);
    }
    if (s->curve != NULL) {
        char title[160];
        bool has_picture = false;
        snprintf(title, sizeof title, "02_char_gpt: %zu parameters, %d rank%s, %d sequences per step",
                 t->model.parameter_count, t->ranks, t->ranks == 1 ? "" : "s", s->global_batch);
        if (!curve_write(&t->curve, s->curve, title, &has_picture)) {
            return fail(t, "the curve is incomplete");
        }
        printf("curve: %s.csv%s%s%s\n", s->curve, has_picture ? " and " : "; no picture without gnuplot",
               has_picture ? s->curve : "", has_picture ? ".png" : "");
    }
    double loss = 0.0;
    if (s->validates && !validation_loss(&t->model, &t->text, &loss)) {
        return fail(t, "not enough memory for the validation");
    }
    if (s->validates) {
        printf("validation loss %.6f, over the %zu characters that were held back\n", loss, t->text.held_out);
    }
    if (s->generate > 0 && !sampler_write(&t->model, &t->text, s->seed, s->generate, stdout)) {
        return fail(t, "not enough memory to generate text");
    }
    return fflush(stdout) == 0 || fail(t, "cannot write to stdout");
}

static bool run(trainer *t) {
    if (!set_up(t)) {
        return false;
    }
    introduce(t);
    return train(t) && (t->rank != 0 || write_results(t));
}

static void tear_down(trainer *t) {
    gsync_reducer_destroy(&t->reducer);
    if (t->log != NULL) {
        fclose(t->log);
    }
    curve_destroy(&t->curve);
    replicas_destroy(&t->replicas);
    free(t->targets);
    free(t->tokens);
    optimizer_destroy(&t->optimizer);
    model_destroy(&t->model);
    text_destroy(&t->text);
}

/* Settings can be complained about by one rank only once ranks know each other; one of them is about the ranks. */
static bool regroup(trainer *t) {
    gsync_comm_options options = GSYNC_COMM_OPTIONS_INIT;
    options.ranks_per_host = (uint32_t)t->settings.ranks_per_host;
    if (options.ranks_per_host == 0) {
        return true;
    }
    gsync_comm_destroy(&t->comm);
    return is_ok(t, gsync_comm_create(&t->comm, &options));
}

int main(int argc, char **argv) {
    trainer t = {.step = 0};
    if (gsync_comm_create(&t.comm, NULL) != GSYNC_OK) {
        fprintf(stderr, "cannot join the other ranks: %s\n", gsync_last_error());
        return 1;
    }
    t.rank = gsync_rank(t.comm);
    t.ranks = gsync_world_size(t.comm);
    int exit_status = 0;
    const settings_verdict verdict = settings_parse(&t.settings, argc, argv, t.rank == 0);
    if (verdict == SETTINGS_WRONG ||
        (verdict == SETTINGS_RUN && !settings_complete(&t.settings, t.ranks, t.rank == 0))) {
        exit_status = 2;
    } else if (verdict == SETTINGS_RUN && (!regroup(&t) || !run(&t))) {
        /* The other ranks may be waiting for this one; they should not have to wait for their deadline. */
        gsync_comm_abort(t.comm, "this rank's trainer failed; it has said why");
        exit_status = 1;
    }
    tear_down(&t);
    gsync_comm_destroy(&t.comm);
    return exit_status;
}
