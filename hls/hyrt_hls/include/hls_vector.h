// hls::vector for simulation with g++: the subset of Vitis HLS's class that the kernels use, in fast plain C++.
#ifndef HYRT_HLS_VECTOR_H
#define HYRT_HLS_VECTOR_H

#ifdef __SYNTHESIS__
#include_next <hls_vector.h>
#else

#include <cassert>
#include <cstddef>
#include <initializer_list>

namespace hls {

namespace details {

/// Largest power of two that divides `bytes`: the alignment that Vitis HLS gives a vector.
constexpr std::size_t alignment_of(std::size_t bytes) {
    return bytes % 2 != 0 ? 1 : 2 * alignment_of(bytes / 2);
}

} // namespace details

/// SIMD vector of N elements of T. As in Vitis HLS, a default-constructed vector is uninitialized, and `vector(value)`
/// sets all elements.
template <typename T, std::size_t N> class alignas(details::alignment_of(sizeof(T) * N)) vector {
    static_assert(N > 0, "hls::vector needs at least one element");

  public:
    using value_type = T;
    static constexpr std::size_t size() { return N; }

    vector() = default;

    /// Set every element to `value`. Implicit, as in Vitis HLS, so that `v * 0.5f` and `v = 0` work.
    vector(const T &value) {
        for (std::size_t i = 0; i < N; ++i)
            data_[i] = value;
    }

    /// Set the elements; exactly N values are required.
    vector(std::initializer_list<T> values) {
        assert(values.size() == N && "an hls::vector is given as many values as it has elements");
        std::size_t i = 0;
        for (const T &value : values)
            data_[i++] = value;
    }

    T &operator[](std::size_t index) { return data_[index]; }
    const T &operator[](std::size_t index) const { return data_[index]; }

    vector &operator+=(const vector &other) {
        for (std::size_t i = 0; i < N; ++i)
            data_[i] += other.data_[i];
        return *this;
    }
    vector &operator-=(const vector &other) {
        for (std::size_t i = 0; i < N; ++i)
            data_[i] -= other.data_[i];
        return *this;
    }
    vector &operator*=(const vector &other) {
        for (std::size_t i = 0; i < N; ++i)
            data_[i] *= other.data_[i];
        return *this;
    }
    vector &operator/=(const vector &other) {
        for (std::size_t i = 0; i < N; ++i)
            data_[i] /= other.data_[i];
        return *this;
    }

    // Friend functions, so that a scalar operand on either side is converted to a vector.
    friend vector operator+(vector left, const vector &right) { return left += right; }
    friend vector operator-(vector left, const vector &right) { return left -= right; }
    friend vector operator*(vector left, const vector &right) { return left *= right; }
    friend vector operator/(vector left, const vector &right) { return left /= right; }
    friend vector operator-(vector operand) {
        for (std::size_t i = 0; i < N; ++i)
            operand.data_[i] = -operand.data_[i];
        return operand;
    }

  private:
    T data_[N];
};

} // namespace hls

#endif // __SYNTHESIS__
#endif
