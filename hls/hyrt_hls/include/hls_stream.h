// hls::stream for simulation with g++: unbounded and fast by default, limited to its depth with -DHYRT_BOUNDED (see
// process.h).
#ifndef HYRT_HLS_STREAM_H
#define HYRT_HLS_STREAM_H

#ifdef __SYNTHESIS__
#include_next <hls_stream.h>
#else

#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "process.h"

namespace hls {

namespace details {

/// Ring buffer that grows by doubling.
template <typename T> class Ring {
  public:
    std::size_t size() const { return size_; }

    void push(const T &value) {
        if (size_ == capacity_)
            grow();
        values_[(first_ + size_++) & (capacity_ - 1)] = value;
    }

    T pop() {
        T value = std::move(values_[first_]);
        // An empty ring restarts at its first slot, which is still in the cache.
        first_ = --size_ == 0 ? 0 : (first_ + 1) & (capacity_ - 1);
        return value;
    }

  private:
    std::unique_ptr<T[]> values_;
    std::size_t capacity_ = 0, first_ = 0, size_ = 0;

    void grow() {
        const std::size_t capacity = capacity_ == 0 ? 8 : 2 * capacity_;
        std::unique_ptr<T[]> values(new T[capacity]); // not make_unique, which would zero the memory
        for (std::size_t i = 0; i < size_; ++i)
            values[i] = std::move(values_[(first_ + i) & (capacity_ - 1)]);
        values_ = std::move(values);
        capacity_ = capacity;
        first_ = 0;
    }
};

} // namespace details

/// FIFO with one writer and one reader. `hyrt_describe` is an addition to Vitis HLS's class, called by HYRT_DEPTH.
template <typename T> class stream {
  public:
    using value_type = T;

    stream() = default;
    explicit stream(const char *name) { rename(name); }
    stream(const stream &) = delete;
    stream &operator=(const stream &) = delete;

    ~stream() {
        // During stack unwinding, unread values are a consequence of the exception.
        if (values_.size() > 0 && std::uncaught_exceptions() == 0)
            hyrt::add_leftover(name(), values_.size());
#ifdef HYRT_BOUNDED
        if (const std::shared_ptr<hyrt::Process> &process = hyrt::current_process) {
            const std::lock_guard<std::mutex> guard(process->simulation->lock);
            process->polled.clear(); // it may contain this stream
        }
#endif
    }

    void operator>>(T &value) { value = read(); }
    void operator<<(const T &value) { write(value); }
    void read(T &value) { value = read(); }

#ifndef HYRT_BOUNDED

    T read() {
        if (values_.size() == 0)
            empty_read();
        failed_polls_ = 0;
        return values_.pop();
    }
    void write(const T &value) { values_.push(value); }
    bool read_nb(T &value) {
        if (empty())
            return false;
        value = read();
        return true;
    }
    bool write_nb(const T &value) {
        values_.push(value);
        return true;
    }
    bool empty() {
        if (values_.size() > 0)
            return false;
        if (++failed_polls_ > MAX_FAILED_POLLS)
            throw hyrt::SimulationError(hyrt::current_process_name() + " polls stream '" + name() +
                                        "' in vain: who runs after its reader, or has ended, writes nothing to it");
        return true;
    }
    bool full() { return false; }
    std::size_t size() { return empty() ? 0 : values_.size(); }

    void hyrt_describe(const std::string &name, int) {
        if (name_.empty())
            name_ = name;
    }

  private:
    // Maximum failed polls between two reads: a reader may poll a stream while it reads others, but beyond this number
    // its loop is considered infinite.
    static constexpr long MAX_FAILED_POLLS = 1L << 26;

    details::Ring<T> values_;
    std::string name_;
    long failed_polls_ = 0; // since the last read

    void rename(const char *name) { name_ = name; }
    std::string name() const { return name_.empty() ? "without a name" : name_; }

#else

    T read() {
        const std::shared_ptr<hyrt::Process> &process = hyrt::current_process;
        if (!process) {
            if (values_.size() == 0)
                empty_read();
            return take();
        }
        std::unique_lock<std::mutex> guard(process->simulation->lock);
        process->simulation->claim(port_.reader, process, port_, "read");
        while (values_.size() == 0) {
            process->simulation->wait(guard, *process, hyrt::State::READING, &port_);
            process->simulation->check();
        }
        T value = take();
        process->simulation->on_transfer(*process, port_.writer.get(), port_);
        return value;
    }

    void write(const T &value) {
        const std::shared_ptr<hyrt::Process> &process = hyrt::current_process;
        if (!process) // a test bench fills the stream before the kernel starts
            return put(value);
        std::unique_lock<std::mutex> guard(process->simulation->lock);
        process->simulation->claim(port_.writer, process, port_, "written");
        while (values_.size() >= port_.depth) {
            process->simulation->wait(guard, *process, hyrt::State::WRITING, &port_);
            process->simulation->check();
        }
        put(value);
        process->simulation->on_transfer(*process, port_.reader.get(), port_);
    }

    bool read_nb(T &value) {
        const std::shared_ptr<hyrt::Process> &process = hyrt::current_process;
        if (!process) {
            if (values_.size() == 0)
                return false;
            value = take();
            return true;
        }
        std::unique_lock<std::mutex> guard(process->simulation->lock);
        process->simulation->claim(port_.reader, process, port_, "read");
        if (values_.size() == 0)
            process->simulation->poll_failed(guard, *process, port_);
        if (values_.size() == 0)
            return false;
        value = take();
        process->simulation->on_transfer(*process, port_.writer.get(), port_);
        return true;
    }

    bool write_nb(const T &value) {
        const std::shared_ptr<hyrt::Process> &process = hyrt::current_process;
        if (!process) {
            put(value);
            return true;
        }
        std::unique_lock<std::mutex> guard(process->simulation->lock);
        process->simulation->claim(port_.writer, process, port_, "written");
        if (values_.size() >= port_.depth)
            process->simulation->poll_failed(guard, *process, port_);
        if (values_.size() >= port_.depth)
            return false;
        put(value);
        process->simulation->on_transfer(*process, port_.reader.get(), port_);
        return true;
    }

    bool empty() {
        const std::shared_ptr<hyrt::Process> &process = hyrt::current_process;
        if (!process)
            return values_.size() == 0;
        std::unique_lock<std::mutex> guard(process->simulation->lock);
        process->simulation->claim(port_.reader, process, port_, "read");
        if (values_.size() == 0)
            process->simulation->poll_failed(guard, *process, port_);
        return values_.size() == 0;
    }

    bool full() {
        const std::shared_ptr<hyrt::Process> &process = hyrt::current_process;
        if (!process)
            return false;
        std::unique_lock<std::mutex> guard(process->simulation->lock);
        process->simulation->claim(port_.writer, process, port_, "written");
        if (values_.size() >= port_.depth)
            process->simulation->poll_failed(guard, *process, port_);
        return values_.size() >= port_.depth;
    }

    std::size_t size() {
        const std::shared_ptr<hyrt::Process> &process = hyrt::current_process;
        if (!process)
            return values_.size();
        std::unique_lock<std::mutex> guard(process->simulation->lock);
        process->simulation->check();
        // A process that reads the size repeatedly may be waiting for it to change.
        if (process == port_.reader || process == port_.writer)
            process->simulation->poll_failed(guard, *process, port_);
        return values_.size();
    }

    void hyrt_describe(const std::string &name, int depth) {
        if (!named_)
            rename(name.c_str());
        port_.depth = static_cast<std::size_t>(depth);
    }

  private:
    details::Ring<T> values_;
    hyrt::Port port_;
    bool named_ = false;

    void rename(const char *name) {
        port_.name = name;
        named_ = true;
    }
    std::string name() const { return port_.name; }

    T take() {
        T value = values_.pop();
        port_.size = values_.size();
        return value;
    }
    void put(const T &value) {
        values_.push(value);
        port_.size = values_.size();
    }

#endif // HYRT_BOUNDED

    [[noreturn]] void empty_read() const {
        throw hyrt::SimulationError(hyrt::current_process_name() + " reads from stream '" + name() +
                                    "', which is empty");
    }
};

} // namespace hls

#endif // __SYNTHESIS__
#endif
