/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: worlds=2 transports=mpi timeout=60 */

/*
 * GS-92: the process has loaded another MPI than the one whose mpi.h the library was compiled with. This program stands
 * between the library and MPI, and makes MPI call itself what it is not. Every rank gets a status that names both,
 * before a handle is given to MPI. What else GS-92 asks for: tests/package (dialects, exported names), options below.
 */

#include "ranks.h"

#include <gradsync/gradsync_mpi.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

/* NULL: what MPI says itself. */
static const char *pretended;

int MPI_Get_library_version(char *version, int *length) {
    if (pretended == NULL) {
        return PMPI_Get_library_version(version, length);
    }
    *length = snprintf(version, 8192, "%s", pretended);
    return MPI_SUCCESS;
}

#if defined(OPEN_MPI)
static const char *const other_family[] = {"MPICH Version:\t4.1.2\nMPICH Release date:\tWed Jun  7",
                                           "Intel(R) MPI Library 2021.11 for Linux* OS\n"};
static const char *const own_family = "Open MPI v5.0.3, package: Open MPI somebody Distribution, ident: 5.0.3";
#define OTHER_NAMES                                                                                                    \
    { "\"MPICH Version:\t4.1.2\"", "\"Intel(R) MPI Library 2021.11 for Linux* OS\"" }
#else
static const char *const other_family[] = {"Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4", "Open MPI v5.0.3"};
static const char *const own_family = "MPICH Version:\t4.1.2\nMPICH Release date:\tWed Jun  7";
#define OTHER_NAMES                                                                                                    \
    { "\"Open MPI v4.1.4\"", "\"Open MPI v5.0.3\"" }
#endif

static void check_refused(gsync_status status, const gsync_comm *comm, const char *name) {
    CHECK_STATUS(status, GSYNC_ERR_UNSUPPORTED);
    CHECK_CONTAINS(gsync_last_error(), name);
    CHECK_CONTAINS(gsync_last_error(), "was built with the mpi.h of");
    CHECK(comm == NULL);
}

static void another_mpi_is_named_and_refused(ranks_context *ctx) {
    static const char *const names[] = OTHER_NAMES;
    for (size_t i = 0; i < sizeof other_family / sizeof *other_family; i++) {
        gsync_comm *comm = NULL;
        pretended = other_family[i];
        check_refused(gsync_comm_create(&comm, &ctx->comm_options), comm, names[i]);
        /* Never looked at. */
        MPI_Comm untouched;
        memset(&untouched, 0x5a, sizeof untouched);
        check_refused(gsync_comm_from_mpi(&comm, untouched, NULL), comm, names[i]);
    }
    pretended = NULL;
}

static void another_version_of_the_same_is_fine(ranks_context *ctx) {
    const size_t counts[] = {5, 300};
    gsync_comm *comm = NULL;
    pretended = own_family;
    REQUIRE_OK(gsync_comm_from_mpi(&comm, MPI_COMM_WORLD, &ctx->comm_options));
    pretended = NULL;
    ranks_model *model = ranks_model_new(ctx, counts, 2, GSYNC_FLOAT32);
    CHECK_OK(ranks_model_register(model, comm, NULL));
    CHECK_OK(gsync_reducer_commit(model->reducer));
    ranks_model_fill(model, RANKS_INTEGERS, 1);
    CHECK_OK(ranks_model_step(model, NULL, NULL));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 1);
    gsync_reducer_destroy(&model->reducer);
    gsync_comm_destroy(&comm);
}

/* A program that was compiled with an older header, whose structures ended earlier. */
static void shorter_structures_are_taken(ranks_context *ctx) {
    gsync_options options = GSYNC_OPTIONS_INIT;
    gsync_comm_options comm_options = ctx->comm_options;
    gsync_step_info info = GSYNC_STEP_INFO_INIT;
    const size_t counts[] = {9, 30};
    gsync_comm *comm = NULL;
    const size_t known = offsetof(gsync_step_info, bucket_count) + sizeof info.bucket_count;
    memset((char *)&options + offsetof(gsync_options, bucket_bytes_max), 0xee,
           sizeof options - offsetof(gsync_options, bucket_bytes_max));
    options.struct_size = offsetof(gsync_options, bucket_bytes_max);
    comm_options.struct_size = offsetof(gsync_comm_options, timeout_ms) + sizeof comm_options.timeout_ms;
    comm_options.transport = GSYNC_TRANSPORT_MPI;
    memset((char *)&info + known, 0xee, sizeof info - known);
    info.struct_size = known;
    REQUIRE_OK(gsync_comm_create(&comm, &comm_options));
    ranks_model *model = ranks_model_new(ctx, counts, 2, GSYNC_FLOAT32);
    CHECK_OK(ranks_model_register(model, comm, &options));
    CHECK_OK(gsync_reducer_commit(model->reducer));
    ranks_model_fill(model, RANKS_INTEGERS, 2);
    CHECK_OK(ranks_model_step(model, NULL, &info));
    CHECK_MODEL_MEAN(model, RANKS_INTEGERS, 2);
    CHECK_EQ(info.bucket_count, gsync_bucket_count(model->reducer));
    const unsigned char *behind = (const unsigned char *)&info + known;
    for (size_t i = 0; i < sizeof info - known; i++) {
        CHECK_EQ(behind[i], 0xee);
    }
    gsync_reducer_destroy(&model->reducer);
    gsync_comm_destroy(&comm);
}

RANKS_MAIN(RANKS_TEST(another_mpi_is_named_and_refused), RANKS_TEST(another_version_of_the_same_is_fine),
           RANKS_TEST(shorter_structures_are_taken))
