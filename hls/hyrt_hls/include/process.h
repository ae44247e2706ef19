// Processes as seen by the streams they use, and deadlock detection in the bounded simulation.
//
// Sequential (the default): processes run one after the other with unbounded streams; a process is only a name for
// error messages. Bounded (-DHYRT_BOUNDED): one thread per process, and streams limited to their depth. One lock guards
// a simulation and its count of running processes: the last process to block finds that all others are blocked, so that
// a deadlock is detected immediately and without a timeout.
#ifndef HYRT_PROCESS_H
#define HYRT_PROCESS_H

#ifndef __SYNTHESIS__

#include <cstddef>
#include <stdexcept>
#include <string>

#ifdef HYRT_BOUNDED
#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>
#endif

namespace hyrt {

/// Error in a kernel or its simulation; the text names region, process and stream.
struct SimulationError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Streams that this thread destroyed with unread values: in hardware, the next launch would read them.
inline thread_local std::string leftovers;

inline void add_leftover(const std::string &stream, std::size_t values) {
    leftovers += (leftovers.empty() ? "" : ", ") + ("stream '" + stream + "' (" + std::to_string(values) + " values)");
}

/// Throws SimulationError if a stream was destroyed with unread values since the last call.
inline void check_leftovers() {
    if (leftovers.empty())
        return;
    const std::string text = "nobody read what was left in " + leftovers + ": hardware hands it to the next launch";
    leftovers.clear();
    throw SimulationError(text);
}

#ifndef HYRT_BOUNDED

struct Process {
    std::string name; // "process 'p' of region 'r'"
};

inline thread_local const Process *current_process = nullptr;

#else

struct Process;
class Simulation;

/// Name, fill level and endpoints of a stream, independent of its value type. Guarded by the simulation's lock.
struct Port {
    std::string name = "without a name";
    std::size_t depth = 2; // default depth of a stream in a dataflow region in Vitis HLS
    std::size_t size = 0;
    std::shared_ptr<Process> reader, writer; // last users; shared, so that no address is reused
};

enum class State { RUNNING, READING, WRITING, POLLING, JOINING };

struct Process {
    std::string name;
    std::shared_ptr<const std::string> region; // compared by address
    std::shared_ptr<Simulation> simulation;
    std::condition_variable wake;
    State state = State::RUNNING;
    const Port *port = nullptr;       // stream that blocks it
    std::vector<const Port *> polled; // polls that failed since the last change for this process
};

inline thread_local std::shared_ptr<Process> current_process;

/// Unwinds a process after its simulation failed in another process, to end its thread.
struct Unwound {};

/// Scheduler state of the processes of an outermost dataflow region and of its nested regions.
class Simulation {
  public:
    // Maximum rounds of failed polls while all other processes are blocked. A pipeline that drains by counting such
    // rounds needs as many rounds as it has stages. Beyond this limit, polling processes count as deadlocked.
    static constexpr int MAX_IDLE_ROUNDS = 4096;

    std::mutex lock;

    /// Message of the first failure; empty if there is none.
    const std::string &failure() const { return failure_; }

    void add(int processes) { running_ += processes; }

    /// Removes a process that has ended or could not be started.
    void remove() {
        if (--running_ == 0)
            on_all_blocked();
    }

    /// Records a failure, and wakes all processes that wait for a stream so that they unwind. Only the first message is
    /// recorded.
    void fail(const std::string &message) {
        if (!failure_.empty())
            return;
        failure_ = message;
        const std::vector<Process *> waiting = waiting_;
        for (Process *process : waiting)
            if (process->state != State::JOINING)
                make_ready(*process);
    }

    void check() const {
        if (!failure_.empty())
            throw Unwound{};
    }

    /// Blocks until another process makes this one ready.
    void wait(std::unique_lock<std::mutex> &guard, Process &process, State state, const Port *port) {
        process.state = state;
        process.port = port;
        waiting_.push_back(&process);
        if (--running_ == 0)
            on_all_blocked();
        process.wake.wait(guard, [&] { return process.state == State::RUNNING; });
    }

    /// Called by a stream operation that transferred a value: `process` performed it, `peer` is at the other end.
    void on_transfer(Process &process, Process *peer, const Port &port) {
        idle_rounds_ = 0;
        process.polled.clear();
        if (peer == nullptr)
            return;
        const bool polls = std::find(peer->polled.begin(), peer->polled.end(), &port) != peer->polled.end();
        if (polls)
            peer->polled.clear();
        const bool waits = peer->state == State::READING || peer->state == State::WRITING;
        if ((waits && peer->port == &port) || (peer->state == State::POLLING && polls))
            make_ready(*peer);
    }

    /// Called after a failed poll of a stream. A second failed poll of it, with no change in between, means that the
    /// polling loop has completed a round: the process blocks until something changes.
    void poll_failed(std::unique_lock<std::mutex> &guard, Process &process, const Port &port) {
        if (std::find(process.polled.begin(), process.polled.end(), &port) == process.polled.end()) {
            process.polled.push_back(&port);
            return;
        }
        wait(guard, process, State::POLLING, &port);
        check();
    }

    void make_ready(Process &process) {
        waiting_.erase(std::find(waiting_.begin(), waiting_.end(), &process));
        process.state = State::RUNNING;
        process.port = nullptr;
        ++running_;
        process.wake.notify_one();
    }

    /// Registers a process as the user of one end of a stream, which is exclusive within a region.
    void claim(std::shared_ptr<Process> &end, const std::shared_ptr<Process> &process, const Port &port,
               const char *verb) {
        check();
        if (end == process)
            return;
        if (end != nullptr && end->region == process->region)
            throw SimulationError("stream '" + port.name + "' is " + verb + " by " + end->name + " and by " +
                                  process->name + ": a stream has one writer and one reader");
        end = process;
    }

  private:
    int running_ = 0; // number of processes that are neither blocked nor finished
    int idle_rounds_ = 0;
    std::vector<Process *> waiting_;
    std::string failure_;

    /// Called if no process is running: lets polling processes retry, or reports a deadlock if no round is left.
    void on_all_blocked() {
        if (waiting_.empty() || !failure_.empty())
            return;
        std::vector<Process *> pollers;
        for (Process *process : waiting_)
            if (process->state == State::POLLING)
                pollers.push_back(process);
        if (!pollers.empty() && idle_rounds_ < MAX_IDLE_ROUNDS) {
            ++idle_rounds_;
            for (Process *process : pollers) {
                process->polled.clear();
                make_ready(*process);
            }
            return;
        }
        fail(deadlock());
    }

    std::string deadlock() const {
        std::vector<Process *> waiting = waiting_;
        std::sort(waiting.begin(), waiting.end(), [](const Process *a, const Process *b) { return a->name < b->name; });
        std::string text;
        for (const Process *process : waiting) {
            if (process->state == State::JOINING)
                continue;
            text += (text.empty() ? "deadlock: " : "; ") + process->name;
            if (process->state != State::POLLING) {
                text += process->state == State::READING ? " waits to read" : " waits to write";
                text += " " + describe(*process->port);
                continue;
            }
            text += " polls";
            for (const Port *port : process->polled)
                text += (port == process->polled.front() ? " " : ", ") + describe(*port);
            text += " in vain";
        }
        return text + ". A full stream needs more depth; an empty one a writer that comes to it";
    }

    static std::string describe(const Port &port) {
        return "stream '" + port.name + "' (" + std::to_string(port.size) + " of " + std::to_string(port.depth) +
               " values)";
    }
};

#endif // HYRT_BOUNDED

/// Name of the current process, for error messages.
inline std::string current_process_name() {
    return current_process ? current_process->name : "code outside any process";
}

} // namespace hyrt

#endif // __SYNTHESIS__
#endif
