// Declarations of the part of Vitis HLS's hls::stream that the kernels use, to compile them as synthesis sees them.
#ifndef HLS_STREAM_H
#define HLS_STREAM_H

namespace hls {

template <typename T> class stream {
  public:
    stream();
    explicit stream(const char *name);
    stream(const stream &) = delete;
    stream &operator=(const stream &) = delete;

    T read();
    bool read_nb(T &value);
    void write(const T &value);
};

} // namespace hls

#endif
