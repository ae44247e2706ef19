// Declarations of the part of Vitis HLS's hls::vector that the kernels use.
#ifndef HLS_VECTOR_H
#define HLS_VECTOR_H

#include <cstddef>

namespace hls {

template <typename T, std::size_t N> class alignas(sizeof(T) * N) vector {
  public:
    vector() = default;
    vector(const T &value);

    T &operator[](std::size_t index);
    const T &operator[](std::size_t index) const;

  private:
    T data_[N];
};

template <typename T, std::size_t N> vector<T, N> operator+(const vector<T, N> &left, const vector<T, N> &right);

} // namespace hls

#endif
