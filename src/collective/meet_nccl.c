/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "collective/internal_nccl.h"
#include "collective/lane.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * How the ranks of a lane make a communicator together, so that all end with the same status. First they show each
 * other cards, and all judge what all see. Then each begins, and they tell each other again and again how far they
 * are: NCCL waits for a rank that has failed until it is told not to.
 */

/* ---- cards ---- */

typedef struct card {
    int32_t status; /* why this rank cannot */
    int32_t version;
    int32_t allows_shared_device;
    int32_t registers;
    char text[256];
    char host[192];
    char bus_id[32];
    ncclUniqueId id; /* of a part's first rank */
} card;

/* As NCCL tells hosts apart: by NCCL_HOSTID, else by name and by what differs in every start of the kernel. */
static void name_host(char *to, size_t size) {
    const char *given = getenv("NCCL_HOSTID");
    char name[100] = "";
    char boot[64] = "";
    if (given != NULL) {
        snprintf(to, size, "%s", given);
        return;
    }
    (void)gethostname(name, sizeof name - 1);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file != NULL) {
        (void)fscanf(file, "%63s", boot);
        (void)fclose(file);
    }
    snprintf(to, size, "%s %s", name, boot);
}

static void write_card(card *to, const gs_nccl_part *part, const gs_nccl_wish *wish, bool makes_id) {
    const gs_nccl_library *library = NULL;
    gsync_status status = wish->own;
    memset(to, 0, sizeof *to);
    if (status == GSYNC_OK) {
        status = gs_nccl_library_find(&library);
    }
    if (status == GSYNC_OK && makes_id && part->own == 0) {
        status = gs_nccl_make_id(library, NULL, &to->id);
    }
    to->status = (int32_t)status;
    to->version = library != NULL ? library->version : 0;
    to->allows_shared_device = wish->allows_shared_device ? 1 : 0;
    to->registers = wish->registers ? 1 : 0;
    if (status != GSYNC_OK) {
        snprintf(to->text, sizeof to->text, "%.255s", gsync_last_error());
    }
    name_host(to->host, sizeof to->host);
    snprintf(to->bus_id, sizeof to->bus_id, "%s", wish->bus_id != NULL ? wish->bus_id : "");
}

static card card_of(const gs_lane *lane, int rank) {
    card of;
    size_t bytes;
    memcpy(&of, gs_lane_mail(lane, rank, &bytes), sizeof of);
    return of;
}

static card member_card(const gs_lane *lane, const gs_nccl_part *part, int place) {
    return card_of(lane, part->members != NULL ? part->members[place] : place);
}

static gsync_status show_cards(gs_lane *lane, const card *mine) {
    const gs_lane_operation operation = {
        .kind = GS_LANE_GATHER, .topic = {.what = "NCCL identities"}, .mail = mine, .mail_bytes = sizeof *mine};
    return gs_lane_run(lane, &operation, NULL, NULL);
}

/* Everybody looks at all cards, also of other parts: all fail or none. */
static gsync_status check_statuses(const gs_lane *lane) {
    for (int rank = 0; rank < gs_lane_world_size(lane); rank++) {
        const card other = card_of(lane, rank);
        if (other.status != GSYNC_OK) {
            return gs_fail((gsync_status)other.status, "rank %d: %s", rank, other.text);
        }
    }
    return GSYNC_OK;
}

static gsync_status compare(const card *a, const card *b, int rank_a, int rank_b) {
    char here[32];
    char there[32];
    if (a->version != b->version) {
        gs_nccl_library_name_version(a->version, here, sizeof here);
        gs_nccl_library_name_version(b->version, there, sizeof there);
        return gs_fail(GSYNC_ERR_MISMATCH, "rank %d has NCCL %s and rank %d has NCCL %s: install the same everywhere",
                       rank_a, here, rank_b, there);
    }
    const bool shares = a->bus_id[0] != '\0' && strcmp(a->bus_id, b->bus_id) == 0 && strcmp(a->host, b->host) == 0;
    if (shares && !(a->allows_shared_device != 0 && b->allows_shared_device != 0)) {
        return gs_fail(GSYNC_ERR_ARGUMENT,
                       "ranks %d and %d are both on GPU %s of host %.64s: call cudaSetDevice with a GPU of its own on "
                       "each rank, or set allows_shared_device",
                       rank_a, rank_b, a->bus_id, a->host);
    }
    return GSYNC_OK;
}

static gsync_status compare_members(const gs_lane *lane, const gs_nccl_part *part) {
    for (int b = 1; b < part->count; b++) {
        const card second = member_card(lane, part, b);
        for (int a = 0; a < b; a++) {
            const card first = member_card(lane, part, a);
            GS_TRY(compare(&first, &second, a, b));
        }
    }
    return GSYNC_OK;
}

static bool do_all_register(const gs_lane *lane, const gs_nccl_part *part) {
    bool do_all = true;
    for (int place = 0; place < part->count; place++) {
        const card member = member_card(lane, part, place);
        do_all = do_all && member.registers != 0;
    }
    return do_all;
}

/* Is it the first of the part's members that is on its machine? */
static bool is_first_there(const gs_lane *lane, const gs_nccl_part *part, int place, const card *own) {
    for (int before = 0; before < place; before++) {
        const card other = member_card(lane, part, before);
        if (strcmp(other.host, own->host) == 0) {
            return false;
        }
    }
    return true;
}

static gs_machine find_machine(const gs_lane *lane, const gs_nccl_part *part, const card *mine) {
    gs_machine machine = {0, 0};
    for (int place = 0; place < part->count; place++) {
        const card member = member_card(lane, part, place);
        machine.rank += place < part->own && strcmp(member.host, mine->host) == 0;
        machine.count += is_first_there(lane, part, place, &member);
    }
    return machine;
}

gsync_status gs_nccl_introduce(gs_lane *lane, const gs_nccl_part *part, const gs_nccl_wish *wish, gs_machine *machine) {
    card mine;
    write_card(&mine, part, wish, false);
    GS_TRY(show_cards(lane, &mine));
    GS_TRY(check_statuses(lane));
    GS_TRY(compare_members(lane, part));
    *machine = find_machine(lane, part, &mine);
    return GSYNC_OK;
}

/* ---- beginning together ---- */

typedef enum progress { GOING_ON, THROUGH, FAILED } progress;

typedef struct report {
    int32_t state;
    int32_t status;
    char text[384];
} report;

static void note_failure(report *own, gsync_status status) {
    own->state = FAILED;
    own->status = (int32_t)status;
    snprintf(own->text, sizeof own->text, "%.383s", gsync_last_error());
}

/* Looks for some milliseconds whether this rank is through. */
static void look(gs_nccl *nccl, uint64_t deadline, report *own) {
    const uint64_t until = gs_clock_ns() + 2000000u;
    bool is_going_on = true;
    while (own->state == GOING_ON && is_going_on && gs_clock_ns() < until) {
        const gsync_status status = gs_nccl_poll(nccl, &is_going_on);
        if (status != GSYNC_OK) {
            note_failure(own, status);
        } else if (!is_going_on) {
            own->state = THROUGH;
        } else {
            gs_nccl_nap();
        }
    }
    if (own->state == GOING_ON && gs_clock_ns() > deadline) {
        note_failure(own, gs_fail(GSYNC_ERR_TIMEOUT,
                                  "NCCL has not connected the ranks within %u ms: look at what NCCL_DEBUG=INFO prints, "
                                  "or raise timeout_ms",
                                  nccl->timeout_ms));
    }
}

static gsync_status judge(const gs_lane *lane, bool *is_through) {
    *is_through = true;
    for (int rank = 0; rank < gs_lane_world_size(lane); rank++) {
        report other;
        size_t bytes;
        memcpy(&other, gs_lane_mail(lane, rank, &bytes), sizeof other);
        if (other.state == FAILED) {
            return gs_fail((gsync_status)other.status, "rank %d: %s", rank, other.text);
        }
        *is_through = *is_through && other.state == THROUGH;
    }
    return GSYNC_OK;
}

/* nccl NULL: this rank has no communicator to wait for. */
static gsync_status wait_together(gs_lane *lane, gs_nccl *nccl, uint32_t timeout_ms, report *own) {
    const uint64_t deadline = gs_clock_ns() + (uint64_t)timeout_ms * 1000000u;
    gs_lane_operation operation = {
        .kind = GS_LANE_GATHER, .topic = {.what = "NCCL start"}, .mail = own, .mail_bytes = sizeof *own};
    for (bool is_through = false; !is_through; operation.topic.part++) {
        if (nccl != NULL) {
            look(nccl, deadline, own);
        }
        GS_TRY(gs_lane_run(lane, &operation, NULL, NULL));
        GS_TRY(judge(lane, &is_through));
    }
    return GSYNC_OK;
}

static void begin(gs_nccl *nccl, const ncclUniqueId *id, int cta_max, report *own) {
    bool is_going_on = false;
    const gsync_status status = gs_nccl_begin(nccl, id, NULL, cta_max, &is_going_on);
    if (status != GSYNC_OK) {
        note_failure(own, status);
    } else {
        own->state = is_going_on ? GOING_ON : THROUGH;
    }
}

gsync_status gs_nccl_meet(gs_lane *lane, uint32_t timeout_ms, const gs_nccl_part *part, const gs_nccl_wish *wish,
                          gs_nccl **out) {
    card mine;
    gs_nccl *nccl = NULL;
    gs_nccl_wish own_wish = *wish;
    report own = {.state = THROUGH};
    if (part->own >= 0 && own_wish.own == GSYNC_OK) {
        own_wish.own = gs_nccl_new(&nccl, part->count, part->own, timeout_ms);
    }
    write_card(&mine, part, &own_wish, true);
    gsync_status status = show_cards(lane, &mine);
    if (status == GSYNC_OK) {
        status = check_statuses(lane);
    }
    if (status == GSYNC_OK && nccl != NULL) {
        /* Another part of a split may be sound, but waits for this rank. */
        status = compare_members(lane, part);
        const card first = member_card(lane, part, 0);
        nccl->machine = find_machine(lane, part, &mine);
        nccl->all_register = do_all_register(lane, part);
        if (status != GSYNC_OK) {
            note_failure(&own, status);
        } else {
            begin(nccl, &first.id, wish->cta_max, &own);
        }
    }
    if (status == GSYNC_OK || own.state == FAILED) {
        status = wait_together(lane, nccl, timeout_ms, &own);
    }
    if (status != GSYNC_OK) {
        gs_nccl_abort(nccl);
        gs_nccl_close(nccl);
        return status;
    }
    *out = nccl;
    return GSYNC_OK;
}
