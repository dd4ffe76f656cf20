/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl_arithmetic.h"

#include <cmath>
#include <cstdint>
#include <cstring>

namespace simcuda {

namespace {

template <class T> T load(const void *from, size_t i) {
    T value;
    memcpy(&value, static_cast<const char *>(from) + i * sizeof(T), sizeof(T));
    return value;
}

template <class T> void store(void *to, size_t i, T value) {
    memcpy(static_cast<char *>(to) + i * sizeof(T), &value, sizeof(T));
}

/* A 16-bit float is computed with as a float: that has more than twice its digits, so rounding twice is rounding once.
 */
struct Half {
    uint16_t bits;
    operator float() const {
        const int exponent = (bits >> 10) & 31;
        const float fraction = static_cast<float>(bits & 1023);
        float value;
        if (exponent == 31) {
            value = fraction != 0 ? NAN : INFINITY;
        } else {
            value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
        }
        return (bits & 0x8000) != 0 ? -value : value;
    }
    static Half round(float value) {
        const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
        const float size = std::fabs(value);
        if (std::isnan(value)) {
            return {0x7FFF};
        }
        if (size >= 65520) {
            return {static_cast<uint16_t>(sign | 0x7C00)};
        }
        int exponent = size > 0 ? std::ilogb(size) : -15;
        exponent = exponent < -14 ? -14 : exponent;
        /* In units of the last place; 2048 carries into the exponent by itself. */
        const auto units = static_cast<uint16_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
        return {static_cast<uint16_t>(sign | ((exponent + 14) * 1024 + units))};
    }
};

struct Bfloat {
    uint16_t bits;
    operator float() const {
        const uint32_t wide = static_cast<uint32_t>(bits) << 16;
        return load<float>(&wide, 0);
    }
    static Bfloat round(float value) {
        if (std::isnan(value)) {
            return {0x7FFF};
        }
        const auto wide = load<uint32_t>(&value, 0);
        return {static_cast<uint16_t>((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16)};
    }
};

/* What a type is computed in, and how results return to it. */
template <class T> struct Arithmetic {
    using Wide = T;
    static T round(Wide value) {
        return value;
    }
};
template <> struct Arithmetic<Half> {
    using Wide = float;
    static Half round(float value) {
        return Half::round(value);
    }
};
template <> struct Arithmetic<Bfloat> {
    using Wide = float;
    static Bfloat round(float value) {
        return Bfloat::round(value);
    }
};

template <class W> W combine(W a, W b, ncclRedOp_t op) {
    switch (op) {
    case ncclProd:
        return static_cast<W>(a * b);
    case ncclMax:
        return a > b ? a : b;
    case ncclMin:
        return a < b ? a : b;
    default:
        return static_cast<W>(a + b);
    }
}

template <class T> struct Reduce {
    static void run(void *into, const void *from, size_t count, ncclRedOp_t op) {
        using Wide = typename Arithmetic<T>::Wide;
        for (size_t i = 0; i < count; i++) {
            const Wide sum = combine<Wide>(load<T>(into, i), load<T>(from, i), op);
            store<T>(into, i, Arithmetic<T>::round(sum));
        }
    }
};

template <class T> struct Multiply {
    static void run(void *values, size_t count, double factor) {
        using Wide = typename Arithmetic<T>::Wide;
        const Wide rounded = Arithmetic<T>::round(static_cast<Wide>(factor));
        for (size_t i = 0; i < count; i++) {
            const Wide product = static_cast<Wide>(static_cast<Wide>(load<T>(values, i)) * rounded);
            store<T>(values, i, Arithmetic<T>::round(product));
        }
    }
};

template <class T> struct Divide {
    static void run(void *values, size_t count, int divisor) {
        for (size_t i = 0; i < count; i++) {
            store<T>(values, i, static_cast<T>(load<T>(values, i) / static_cast<T>(divisor)));
        }
    }
};

template <class T> struct Scalar {
    static void run(const void *scalar, double *value) {
        *value = static_cast<double>(static_cast<typename Arithmetic<T>::Wide>(load<T>(scalar, 0)));
    }
};

template <template <class> class Action, class... Arguments>
void for_integer(ncclDataType_t type, Arguments... arguments) {
    switch (type) {
    case ncclInt8:
        return Action<int8_t>::run(arguments...);
    case ncclUint8:
        return Action<uint8_t>::run(arguments...);
    case ncclInt32:
        return Action<int32_t>::run(arguments...);
    case ncclUint32:
        return Action<uint32_t>::run(arguments...);
    case ncclInt64:
        return Action<int64_t>::run(arguments...);
    case ncclUint64:
        return Action<uint64_t>::run(arguments...);
    default:
        return;
    }
}

template <template <class> class Action, class... Arguments>
void for_type(ncclDataType_t type, Arguments... arguments) {
    switch (type) {
    case ncclFloat16:
        return Action<Half>::run(arguments...);
    case ncclBfloat16:
        return Action<Bfloat>::run(arguments...);
    case ncclFloat32:
        return Action<float>::run(arguments...);
    case ncclFloat64:
        return Action<double>::run(arguments...);
    default:
        return for_integer<Action>(type, arguments...);
    }
}

} // namespace

size_t bytes_of(ncclDataType_t type) {
    switch (type) {
    case ncclInt8:
    case ncclUint8:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
        return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
        return 8;
    default:
        return 0;
    }
}

bool is_floating(ncclDataType_t type) {
    return type == ncclFloat16 || type == ncclBfloat16 || type == ncclFloat32 || type == ncclFloat64;
}

void reduce(void *into, const void *from, size_t count, ncclDataType_t type, ncclRedOp_t op) {
    for_type<Reduce>(type, into, from, count, op);
}

double scalar_of(const void *scalar, ncclDataType_t type) {
    double value = 0;
    for_type<Scalar>(type, scalar, &value);
    return value;
}

void multiply(void *values, size_t count, ncclDataType_t type, double factor) {
    for_type<Multiply>(type, values, count, factor);
}

void divide(void *values, size_t count, ncclDataType_t type, int divisor) {
    for_integer<Divide>(type, values, count, divisor);
}

} // namespace simcuda
