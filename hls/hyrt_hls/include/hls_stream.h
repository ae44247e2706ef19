// hls::stream for simulation with g++: unbounded and fast, or with -DHYRT_BOUNDED of its depth (see process.h).
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

/// A ring of values that grows by doubling.
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
        // An empty ring starts anew at its front, which the cache still holds.
        first_ = --size_ == 0 ? 0 : (first_ + 1) & (capacity_ - 1);
        return value;
    }

  private:
    std::unique_ptr<T[]> values_;
    std::size_t capacity_ = 0, first_ = 0, size_ = 0;

    void grow() {
        const std::size_t capacity = capacity_ == 0 ? 8 : 2 * capacity_;
        std::unique_ptr<T[]> values(new T[capacity]); // not make_unique: that would write zeros first
        for (std::size_t i = 0; i < size_; ++i)
            values[i] = std::move(values_[(first_ + i) & (capacity_ - 1)]);
        values_ = std::move(values);
        capacity_ = capacity;
        first_ = 0;
    }
};

} // namespace details

/// A queue of values with one writer and one reader. `hyrt_describe` is not Vitis HLS's: HYRT_DEPTH calls it.
template <typename T> class stream {
  public:
    using value_type = T;

    stream() = default;
    explicit stream(const char *name) { rename(name); }
    stream(const stream &) = delete;
    stream &operator=(const stream &) = delete;

    ~stream() {
        // While an exception passes, what is left behind is its consequence.
        if (values_.size() > 0 && std::uncaught_exceptions() == 0)
            hyrt::add_leftover(name(), values_.size());
#ifdef HYRT_BOUNDED
        if (const std::shared_ptr<hyrt::Process> &me = hyrt::current_process) {
            const std::lock_guard<std::mutex> guard(me->simulation->lock);
            me->polled.clear(); // it may name this stream
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
        vain_ = 0;
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
        if (++vain_ > VAIN_POLLS)
            throw hyrt::SimulationError(hyrt::here() + " polls stream '" + name() +
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
    // So often may a reader ask between two reads while it reads other streams; then its loop has no end.
    static constexpr long VAIN_POLLS = 1L << 26;

    details::Ring<T> values_;
    std::string name_;
    long vain_ = 0; // questions since the last read that found nothing

    void rename(const char *name) { name_ = name; }
    std::string name() const { return name_.empty() ? "without a name" : name_; }

#else

    T read() {
        const std::shared_ptr<hyrt::Process> &me = hyrt::current_process;
        if (!me) {
            if (values_.size() == 0)
                empty_read();
            return take();
        }
        std::unique_lock<std::mutex> guard(me->simulation->lock);
        me->simulation->claim(port_.reader, me, port_, "read");
        while (values_.size() == 0) {
            me->simulation->wait(guard, *me, hyrt::State::READING, &port_);
            me->simulation->check();
        }
        T value = take();
        me->simulation->moved(*me, port_.writer.get(), port_);
        return value;
    }

    void write(const T &value) {
        const std::shared_ptr<hyrt::Process> &me = hyrt::current_process;
        if (!me) // a test bench that fills a stream before the kernel starts
            return put(value);
        std::unique_lock<std::mutex> guard(me->simulation->lock);
        me->simulation->claim(port_.writer, me, port_, "written");
        while (values_.size() >= port_.depth) {
            me->simulation->wait(guard, *me, hyrt::State::WRITING, &port_);
            me->simulation->check();
        }
        put(value);
        me->simulation->moved(*me, port_.reader.get(), port_);
    }

    bool read_nb(T &value) {
        const std::shared_ptr<hyrt::Process> &me = hyrt::current_process;
        if (!me) {
            if (values_.size() == 0)
                return false;
            value = take();
            return true;
        }
        std::unique_lock<std::mutex> guard(me->simulation->lock);
        me->simulation->claim(port_.reader, me, port_, "read");
        if (values_.size() == 0)
            me->simulation->asked_in_vain(guard, *me, port_);
        if (values_.size() == 0)
            return false;
        value = take();
        me->simulation->moved(*me, port_.writer.get(), port_);
        return true;
    }

    bool write_nb(const T &value) {
        const std::shared_ptr<hyrt::Process> &me = hyrt::current_process;
        if (!me) {
            put(value);
            return true;
        }
        std::unique_lock<std::mutex> guard(me->simulation->lock);
        me->simulation->claim(port_.writer, me, port_, "written");
        if (values_.size() >= port_.depth)
            me->simulation->asked_in_vain(guard, *me, port_);
        if (values_.size() >= port_.depth)
            return false;
        put(value);
        me->simulation->moved(*me, port_.reader.get(), port_);
        return true;
    }

    bool empty() {
        const std::shared_ptr<hyrt::Process> &me = hyrt::current_process;
        if (!me)
            return values_.size() == 0;
        std::unique_lock<std::mutex> guard(me->simulation->lock);
        me->simulation->claim(port_.reader, me, port_, "read");
        if (values_.size() == 0)
            me->simulation->asked_in_vain(guard, *me, port_);
        return values_.size() == 0;
    }

    bool full() {
        const std::shared_ptr<hyrt::Process> &me = hyrt::current_process;
        if (!me)
            return false;
        std::unique_lock<std::mutex> guard(me->simulation->lock);
        me->simulation->claim(port_.writer, me, port_, "written");
        if (values_.size() >= port_.depth)
            me->simulation->asked_in_vain(guard, *me, port_);
        return values_.size() >= port_.depth;
    }

    std::size_t size() {
        const std::shared_ptr<hyrt::Process> &me = hyrt::current_process;
        if (!me)
            return values_.size();
        std::unique_lock<std::mutex> guard(me->simulation->lock);
        me->simulation->check();
        // Whoever looks at the size twice may be waiting for it to change.
        if (me == port_.reader || me == port_.writer)
            me->simulation->asked_in_vain(guard, *me, port_);
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
        throw hyrt::SimulationError(hyrt::here() + " reads from stream '" + name() + "', which is empty");
    }
};

} // namespace hls

#endif // __SYNTHESIS__
#endif
