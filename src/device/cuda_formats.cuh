/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_DEVICE_CUDA_FORMATS_CUH
#define GS_DEVICE_CUDA_FORMATS_CUH

/* Element types as template arguments, and how threads load and store several elements at once. */

#include "device/device_cuda_kernels.h"

/* Host compilers would warn of pragmas that they do not know. */
#if defined(__CUDA_ARCH__)
#define GS_UNROLL _Pragma("unroll")
#define GS_UNROLL_BY_4 _Pragma("unroll 4")
#define GS_UNROLL_NOT _Pragma("unroll 1")
#else
#define GS_UNROLL
#define GS_UNROLL_BY_4
#define GS_UNROLL_NOT
#endif

namespace gs_cuda_code {

/* ---- element types ---- */

struct Float32 {
    typedef float Stored;
    typedef float Wide;
    static const bool is_narrow = false;
    static GS_ANYWHERE float widen(float x) {
        return x;
    }
    static GS_ANYWHERE float narrow(float x) {
        return x;
    }
    static GS_ANYWHERE bool is_finite(float x) {
        return (gs_float_bits(x) & 0x7f800000u) != 0x7f800000u;
    }
};

struct Float64 {
    typedef double Stored;
    typedef double Wide;
    static const bool is_narrow = false;
    static GS_ANYWHERE double widen(double x) {
        return x;
    }
    static GS_ANYWHERE double narrow(double x) {
        return x;
    }
    static GS_ANYWHERE bool is_finite(double x) {
        return gs_is_finite_f64(x);
    }
};

struct Float16 {
    typedef uint16_t Stored;
    typedef float Wide;
    static const bool is_narrow = true;
    static const bool is_half = true;
    static GS_ANYWHERE float widen(uint16_t x) {
        return gs_element_from_half(x);
    }
    static GS_ANYWHERE uint16_t narrow(float x) {
        return gs_element_to_half(x);
    }
    static GS_ANYWHERE bool is_finite(uint16_t x) {
        return (x & 0x7c00u) != 0x7c00u;
    }
};

struct BFloat16 {
    typedef uint16_t Stored;
    typedef float Wide;
    static const bool is_narrow = true;
    static const bool is_half = false;
    static GS_ANYWHERE float widen(uint16_t x) {
        return gs_bfloat_to_float(x);
    }
    static GS_ANYWHERE uint16_t narrow(float x) {
        return gs_bfloat_from_float(x);
    }
    static GS_ANYWHERE bool is_finite(uint16_t x) {
        return (x & 0x7f80u) != 0x7f80u;
    }
};

template <class A, class B> struct Same { static const bool value = false; };
template <class A> struct Same<A, A> { static const bool value = true; };

static inline GS_ANYWHERE float one_nan(float x) {
    return gs_one_nan_f32(x);
}
static inline GS_ANYWHERE double one_nan(double x) {
    return gs_one_nan_f64(x);
}
static inline GS_ANYWHERE float divided(float x, gs_cuda_division by) {
    return gs_divided_f32(x, by);
}
static inline GS_ANYWHERE double divided(double x, gs_cuda_division by) {
    return gs_divided_f64(x, by);
}
/* The factor in float64, as gs_host_scale does it. */
static inline GS_ANYWHERE float scaled(float x, double factor) {
    return gs_one_nan_f32((float)((double)x * factor));
}
static inline GS_ANYWHERE double scaled(double x, double factor) {
    return gs_one_nan_f64(x * factor);
}

/* What gradients and their bucket are computed in need not be the same. On the way NaN becomes the one that there is.
 */
template <class To, class From> struct Turned {
    static GS_ANYWHERE To of(From x) {
        return one_nan((To)x);
    }
};
template <class T> struct Turned<T, T> {
    static GS_ANYWHERE T of(T x) {
        return x;
    }
};

/* A result as it is kept. */
template <class D> static inline GS_ANYWHERE typename D::Stored stored(float x) {
    return D::narrow(Turned<typename D::Wide, float>::of(x));
}
template <class D> static inline GS_ANYWHERE typename D::Stored stored(double x) {
    return D::narrow(Turned<typename D::Wide, double>::of(x));
}

/* ---- to and from the wire's type ---- */

template <class W, bool is_narrow = W::is_narrow> struct Wire {
    static GS_ANYWHERE typename W::Stored encode(typename W::Wide x, const gs_cuda_narrowing &, gs_cuda_tally *) {
        return W::narrow(x);
    }
    static GS_ANYWHERE typename W::Wide decode(typename W::Stored x, const gs_cuda_narrowing &) {
        return W::widen(x);
    }
};

template <class W> struct Wire<W, true> {
    static GS_ANYWHERE uint16_t encode(float x, const gs_cuda_narrowing &how, gs_cuda_tally *tally) {
        return how.is_on ? gs_narrowed(x, &how, W::is_half, tally) : W::narrow(x);
    }
    static GS_ANYWHERE float decode(uint16_t x, const gs_cuda_narrowing &how) {
        const float wide = W::widen(x);
        return how.is_on && W::is_half ? gs_one_nan_f32(wide * how.inverse) : wide;
    }
};

/* Only FLOAT16 has a scale. */
template <class W>
static inline GS_ANYWHERE gs_cuda_narrowing narrowing_of_results(const gs_cuda_narrowing &how,
                                                                 const gs_cuda_result_scale &results) {
    return Same<W, Float16>::value ? gs_narrowing_of_results(&how, &results) : how;
}

static inline GS_ANYWHERE void note_absmax(gs_cuda_tally *tally, float x) {
    gs_cuda_note_absmax(tally, x);
}
static inline GS_ANYWHERE void note_absmax(gs_cuda_tally *, double) {
}

template <class T>
static inline GS_ANYWHERE void note_stored(gs_cuda_tally *tally, typename T::Stored x, uint64_t element) {
    if (!T::is_finite(x)) {
        gs_cuda_note_nonfinite(tally, element);
    }
}

template <class T>
static inline GS_ANYWHERE void note_result(gs_cuda_tally *tally, typename T::Stored x, uint64_t element) {
    note_stored<T>(tally, x, element);
    gs_cuda_note_square(tally, (double)T::widen(x));
}

/* ---- memory ---- */

/* Elements that are loaded and stored together, 16 bytes at a time if there are so many. */
template <class T, int COUNT> struct alignas(COUNT * sizeof(T) < 16 ? COUNT * sizeof(T) : 16) Pack { T at[COUNT]; };

/*
 * What one instruction loads or stores, past the first-level cache, where nothing is needed twice. With ordinary loads
 * and stores nvcc would find that both branches below do the same, and keep the one with single elements.
 */
#if defined(__CUDA_ARCH__)
template <size_t BYTES> struct Word { typedef uint4 Type; };
template <> struct Word<8> { typedef uint2 Type; };
template <class W> static inline __device__ W load_words(const W *from) {
    return __ldcg(from);
}
static inline __device__ void store_words(uint4 *to, const uint32_t *words) {
    __stcg(to, make_uint4(words[0], words[1], words[2], words[3]));
}
static inline __device__ void store_words(uint2 *to, const uint32_t *words) {
    __stcg(to, make_uint2(words[0], words[1]));
}
#else
template <size_t BYTES> struct Words { uint32_t at[BYTES / sizeof(uint32_t)]; };
template <size_t BYTES> struct Word { typedef Words<(BYTES < 16 ? BYTES : 16)> Type; };
template <class W> static inline W load_words(const W *from) {
    W words;
    memcpy(&words, from, sizeof words);
    return words;
}
template <class W> static inline void store_words(W *to, const uint32_t *words) {
    memcpy(to, words, sizeof *to);
}
#endif

template <class T, int COUNT> static inline GS_ANYWHERE void load(Pack<T, COUNT> *to, const T *from) {
    typedef typename Word<sizeof *to>::Type Words;
    if ((uintptr_t)from % alignof(Pack<T, COUNT>) == 0) {
        GS_UNROLL
        for (size_t k = 0; k < sizeof *to / sizeof(Words); k++) {
            const Words words = load_words(reinterpret_cast<const Words *>(from) + k);
            memcpy((char *)to + k * sizeof words, &words, sizeof words);
        }
        return;
    }
    GS_UNROLL
    for (int k = 0; k < COUNT; k++) {
        to->at[k] = from[k];
    }
}

/* 32 bits of what is stored, put together by hand: from copied bytes nvcc makes stores of single elements again. */
static inline GS_ANYWHERE uint32_t word_of(const uint8_t *from, int word) {
    const uint8_t *const at = from + 4 * word;
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}
static inline GS_ANYWHERE uint32_t word_of(const uint16_t *from, int word) {
    return (uint32_t)from[2 * word] | (uint32_t)from[2 * word + 1] << 16;
}
static inline GS_ANYWHERE uint32_t word_of(const float *from, int word) {
    return gs_float_bits(from[word]);
}
static inline GS_ANYWHERE uint32_t word_of(const double *from, int word) {
    uint64_t bits;
    memcpy(&bits, &from[word / 2], sizeof bits);
    return (uint32_t)(bits >> 32 * (word % 2));
}

template <class T, int COUNT> static inline GS_ANYWHERE void store(T *to, const Pack<T, COUNT> &from) {
    typedef typename Word<sizeof from>::Type Words;
    const int word_count = (int)(sizeof(Words) / sizeof(uint32_t));
    if ((uintptr_t)to % alignof(Pack<T, COUNT>) == 0) {
        GS_UNROLL
        for (int k = 0; k < (int)(sizeof from / sizeof(Words)); k++) {
            uint32_t words[word_count];
            GS_UNROLL
            for (int word = 0; word < word_count; word++) {
                words[word] = word_of(from.at, k * word_count + word);
            }
            store_words(reinterpret_cast<Words *>(to) + k, words);
        }
        return;
    }
    GS_UNROLL
    for (int k = 0; k < COUNT; k++) {
        to[k] = from.at[k];
    }
}

} // namespace gs_cuda_code

#endif
