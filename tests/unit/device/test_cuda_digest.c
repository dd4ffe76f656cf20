/* SPDX-License-Identifier: Apache-2.0 */
/* gsync-test: memory=no */

/* The number that a simulated GPU makes of what a gradient holds. */

#include "cuda_fixture.h"
#include "simcuda.h"

#define SEED 20261203

static const gsync_dtype types[] = {GSYNC_FLOAT32, GSYNC_FLOAT64, GSYNC_FLOAT16, GSYNC_BFLOAT16};

/* One thread, one element after the other. */
static uint64_t digest_on_host(const gs_tensor *tensor) {
    const size_t size = gsync_dtype_size(tensor->dtype);
    uint64_t sum = 0;
    for (uint64_t k = 0; k < gs_tensor_count(tensor); k++) {
        uint64_t x = 0;
        const size_t at = k / tensor->columns * tensor->row_pitch + k % tensor->columns;
        memcpy(&x, (const unsigned char *)tensor->data + at * size, size);
        x += (k + 1) * UINT64_C(0x9e3779b97f4a7c15);
        for (int round = 0; round < 2; round++) {
            x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
        }
        sum += x ^ (x >> 32);
    }
    return sum;
}

static void expect_digests(const gpu *on, const bucket *of, uint64_t seed) {
    uint64_t digests[TERMS_MAX] = {0};
    uint64_t alone = 0;
    uint64_t *const memory = gpu_copy_of(on, digests, sizeof digests);
    uint64_t *const one = gpu_copy_of(on, &alone, sizeof alone);
    const gs_cuda_pass pass = pass_of(of, of->dtype);
    assert_int_equal(gs_cuda_digest(on->cuda, &pass, memory, on->stream), GSYNC_OK);
    assert_int_equal(gs_cuda_digest_one(on->cuda, &of->terms[0], of->dtype, one, on->stream), GSYNC_OK);
    gpu_get(on, digests, memory, sizeof digests);
    gpu_get(on, &alone, one, sizeof alone);
    for (size_t i = 0; i < of->term_count; i++) {
        if (digests[i] != digest_on_host(&of->tensors[i])) {
            fail_msg("seed %llu: the digest of gradient %zu of %zu is another than the host's",
                     (unsigned long long)seed, i, of->term_count);
        }
    }
    assert_true(alone == digests[0]);
    gs_cuda_free(on->cuda, one);
    gs_cuda_free(on->cuda, memory);
}

static void digests_depend_on_elements_alone(void **state) {
    for (uint64_t round = 0; round < 24; round++) {
        bucket made = bucket_random(*state, types[round % 4], ANY_BITS, false, SEED + round);
        expect_digests(*state, &made, SEED + round);
        bucket_free(*state, &made);
    }
}

static uint64_t digest_of(const gpu *on, const uint16_t *elements, size_t count) {
    uint64_t digest = 0;
    uint16_t *const data = gpu_copy_of(on, elements, count * sizeof *elements);
    uint64_t *const memory = gpu_copy_of(on, &digest, sizeof digest);
    const gs_cuda_term term = {data, NULL, 1, count, count, 0, 0};
    assert_int_equal(gs_cuda_digest_one(on->cuda, &term, GSYNC_FLOAT16, memory, on->stream), GSYNC_OK);
    gpu_get(on, &digest, memory, sizeof digest);
    gs_cuda_free(on->cuda, memory);
    gs_cuda_free(on->cuda, data);
    return digest;
}

static void any_bit_and_any_two_elements_that_change_places_are_noticed(void **state) {
    enum { COUNT = 77 };
    uint16_t elements[COUNT];
    seeded random = {SEED};
    fill_values(elements, GSYNC_FLOAT16, COUNT, ANY_BITS, &random);
    const uint64_t before = digest_of(*state, elements, COUNT);
    for (size_t bit = 0; bit < (size_t)COUNT * 16; bit += 3) {
        elements[bit / 16] ^= (uint16_t)(1u << bit % 16);
        assert_true(digest_of(*state, elements, COUNT) != before);
        elements[bit / 16] ^= (uint16_t)(1u << bit % 16);
    }
    for (size_t i = 1; i < COUNT; i++) {
        const uint16_t first = elements[0];
        elements[0] = elements[i];
        elements[i] = first;
        assert_true(first == elements[0] || digest_of(*state, elements, COUNT) != before);
        elements[i] = elements[0];
        elements[0] = first;
    }
    assert_true(digest_of(*state, elements, COUNT) == before);
    assert_true(digest_of(*state, elements, COUNT - 1) != before);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, gpu_setup, gpu_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(digests_depend_on_elements_alone),
        TEST(any_bit_and_any_two_elements_that_change_places_are_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
