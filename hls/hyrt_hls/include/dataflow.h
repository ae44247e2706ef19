// Dataflow regions that are simulated with g++, and are plain calls under `#pragma HLS DATAFLOW` in Vitis HLS.
//
//     void kernel(const float *in, float *out, int n) {
//         HYRT_DATAFLOW(kernel_region);
//         hls::stream<float> values("values");
//     #pragma HLS stream variable=values depth=16
//         HYRT_DEPTH(values, 16);
//         HYRT_PROCESS(kernel_region, load(in, values, n));
//         HYRT_PROCESS(kernel_region, store(values, out, n));
//         HYRT_JOIN(kernel_region);
//     }
//
// In simulation the processes start at HYRT_JOIN, one after the other (sequential) or concurrently with one thread each
// (bounded). Variables that they use must live until then: the index of HYRT_PROCESSES is captured by value, everything
// else by reference. Bounded processes may share streams and read-only memory, and may each write memory that no other
// process accesses; an array must not be written by one process and read by another.
#ifndef HYRT_DATAFLOW_H
#define HYRT_DATAFLOW_H

#ifdef __SYNTHESIS__

#define HYRT_DATAFLOW(region) _Pragma("HLS DATAFLOW")
#define HYRT_PROCESS(region, ...) __VA_ARGS__
#define HYRT_PROCESSES(region, index, count, ...) \
    for (int index = 0; index < (count); ++index) { \
        _Pragma("HLS UNROLL") __VA_ARGS__; \
    }
#define HYRT_JOIN(region)
#define HYRT_DEPTH(stream, depth)

#else

#define HYRT_DATAFLOW(region) hyrt::Dataflow region(#region)
#define HYRT_PROCESS(region, ...) (region).run(hyrt::called_name(#__VA_ARGS__), [&] { __VA_ARGS__; })
#define HYRT_PROCESSES(region, index, count, ...) \
    for (int index = 0; index < (count); ++index) \
    (region).run(hyrt::called_name(#__VA_ARGS__) + "[" + std::to_string(index) + "]", [&, index] { __VA_ARGS__; })
#define HYRT_JOIN(region) (region).join()
#define HYRT_DEPTH(stream, depth) hyrt::set_depth(stream, #stream, depth)

#include <cstddef>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "process.h"

#ifdef HYRT_BOUNDED
#include <system_error>
#include <thread>
#endif

namespace hyrt {

/// Function name in the text of a call: `scatter` for `scatter<PES>(in, out)`.
inline std::string called_name(const std::string &call) {
    return call.substr(0, call.find_first_of("<( "));
}

template <typename Stream, typename = void> struct is_described : std::false_type {};
template <typename Stream>
struct is_described<Stream, std::void_t<decltype(std::declval<Stream &>().hyrt_describe(std::string(), 0))>>
    : std::true_type {};

/// Sets the depth of a stream, and its name if it has none. Streams of other vendors have no depth in simulation, and
/// are left unchanged.
template <typename Stream> void set_depth(Stream &stream, const std::string &name, int depth) {
    if (depth < 1)
        throw SimulationError("stream '" + name + "' has depth " + std::to_string(depth) + ": it needs 1 at least");
    if constexpr (is_described<Stream>::value)
        stream.hyrt_describe(name, depth);
}

template <typename Stream, std::size_t N> void set_depth(Stream (&streams)[N], const std::string &name, int depth) {
    for (std::size_t i = 0; i < N; ++i)
        set_depth(streams[i], name + "[" + std::to_string(i) + "]", depth);
}

/// Region of processes that run concurrently in hardware.
class Dataflow {
  public:
    explicit Dataflow(std::string name) : name_(std::move(name)) {}
    Dataflow(const Dataflow &) = delete;
    Dataflow &operator=(const Dataflow &) = delete;

    // Throws if the region was not joined: its processes have not run, which must be reported.
    ~Dataflow() noexcept(false) {
        if (!bodies_.empty() && std::uncaught_exceptions() == exceptions_)
            throw SimulationError("region '" + name_ + "' is left without HYRT_JOIN: its processes never ran");
    }

    /// Registers a process, which `join` starts.
    void run(const std::string &process, std::function<void()> body) {
        names_.push_back("process '" + process + "' of region '" + name_ + "'");
        bodies_.push_back(std::move(body));
    }

    /// Runs all processes to completion. Throws SimulationError if one of them throws or all are blocked (deadlock).
    void join();

  private:
    std::string name_;
    std::vector<std::string> names_;
    std::vector<std::function<void()>> bodies_;
    int exceptions_ = std::uncaught_exceptions();
};

#ifndef HYRT_BOUNDED

inline void Dataflow::join() {
    const std::vector<std::function<void()>> bodies = std::exchange(bodies_, {});
    struct Restore {
        const Process *outer = current_process;
        ~Restore() { current_process = outer; }
    } restore;
    for (std::size_t i = 0; i < bodies.size(); ++i) {
        const Process process{names_[i]};
        current_process = &process;
        try {
            bodies[i]();
        } catch (const SimulationError &) { // the text names the process already
            throw;
        } catch (const std::exception &error) {
            throw SimulationError(process.name + ": " + error.what());
        } catch (...) {
            throw SimulationError(process.name + " threw something that is no std::exception");
        }
    }
    names_.clear();
}

#else

inline void Dataflow::join() {
    const std::vector<std::function<void()>> bodies = std::exchange(bodies_, {});
    if (bodies.empty())
        return;
    const std::shared_ptr<Process> parent = current_process;
    const std::shared_ptr<Simulation> simulation = parent ? parent->simulation : std::make_shared<Simulation>();
    const auto region = std::make_shared<const std::string>(name_);
    std::size_t remaining = bodies.size();
    std::vector<std::thread> threads;
    // Called under the lock. The last process makes the parent ready before `remove` checks for a deadlock.
    const auto end_processes = [&](std::size_t processes) {
        for (std::size_t i = 0; i < processes; ++i) {
            if (--remaining == 0 && parent && parent->state == State::JOINING)
                simulation->make_ready(*parent);
            simulation->remove();
        }
    };
    const auto run_process = [&](std::size_t i) {
        auto process = std::make_shared<Process>();
        process->name = names_[i];
        process->region = region;
        process->simulation = simulation;
        current_process = process;
        std::string failure;
        try {
            bodies[i]();
            check_leftovers();
        } catch (const Unwound &) { // the first failure is already recorded
        } catch (const SimulationError &error) {
            failure = error.what();
        } catch (const std::exception &error) {
            failure = process->name + ": " + error.what();
        } catch (...) {
            failure = process->name + " threw something that is no std::exception";
        }
        current_process = nullptr;
        const std::lock_guard<std::mutex> guard(simulation->lock);
        if (!failure.empty())
            simulation->fail(failure);
        end_processes(1);
    };
    {
        const std::lock_guard<std::mutex> guard(simulation->lock);
        // Count all processes before the first one starts: otherwise it could find itself the only one, and report a
        // deadlock.
        simulation->add(static_cast<int>(bodies.size()));
    }
    try {
        threads.reserve(bodies.size());
        for (std::size_t i = 0; i < bodies.size(); ++i)
            threads.emplace_back(run_process, i);
    } catch (const std::exception &error) {
        const std::lock_guard<std::mutex> guard(simulation->lock);
        simulation->fail("region '" + name_ + "' could not start a thread for " + names_[threads.size()] + ": " +
                         error.what());
        end_processes(bodies.size() - threads.size());
    }
    if (parent) {
        std::unique_lock<std::mutex> guard(simulation->lock);
        if (remaining > 0)
            simulation->wait(guard, *parent, State::JOINING, nullptr);
    }
    for (std::thread &thread : threads)
        thread.join();
    names_.clear();
    if (simulation->failure().empty())
        return;
    if (parent)
        throw Unwound{};
    throw SimulationError(simulation->failure());
}

#endif // HYRT_BOUNDED

/// Runs `body` for a C caller. Returns 0, or 1 with the error in `message`, truncated to `size` bytes including the
/// terminating 0.
template <typename Body> int report_errors(char *message, int size, Body &&body) {
    const auto report = [&](const char *text) {
        if (message != nullptr && size > 0)
            std::snprintf(message, static_cast<std::size_t>(size), "%s", text);
        return 1;
    };
    leftovers.clear();
    try {
        body();
        check_leftovers();
    } catch (const std::exception &error) {
        return report(error.what());
    } catch (...) {
        return report("the simulation threw something that is no std::exception");
    }
    return 0;
}

} // namespace hyrt

#endif // __SYNTHESIS__
#endif
