// What a stream knows of the process that uses it, and how a bounded simulation finds that no process can go on.
//
// Sequential (the default): processes run one after the other over unbounded streams; a process is only a name for
// messages. Bounded (-DHYRT_BOUNDED): a thread a process and streams of their depth. One lock guards a simulation:
// whoever waits is counted under it, so the one that would be the last to wait knows that all wait: a deadlock is found
// at once, and without a clock.
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

/// What a kernel or its simulation did wrong: the text names region, process and stream.
struct SimulationError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Streams that this thread destroyed with values in them: hardware would hand these to the next launch.
inline thread_local std::string leftovers;

inline void add_leftover(const std::string &stream, std::size_t values) {
    leftovers += (leftovers.empty() ? "" : ", ") + ("stream '" + stream + "' (" + std::to_string(values) + " values)");
}

/// Throws when a stream was destroyed with values in it since the last call.
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

/// A stream's name, fill and ends, without its values' type. Guarded by the simulation's lock.
struct Port {
    std::string name = "without a name";
    std::size_t depth = 2; // what Vitis HLS gives a stream of a dataflow region
    std::size_t size = 0;
    std::shared_ptr<Process> reader, writer; // that last used it; kept, so that an old one is never taken for a new one
};

enum class State { RUNNING, READING, WRITING, POLLING, JOINING };

struct Process {
    std::string name;
    std::shared_ptr<const std::string> region; // compared by address
    std::shared_ptr<Simulation> simulation;
    std::condition_variable wake;
    State state = State::RUNNING;
    const Port *port = nullptr;       // that it waits for
    std::vector<const Port *> polled; // asked in vain since something last changed for this process
};

inline thread_local std::shared_ptr<Process> current_process;

/// Thrown through a process whose simulation has failed elsewhere, to end its thread.
struct Unwound {};

/// The processes of one outermost dataflow region and of the regions inside it.
class Simulation {
  public:
    // A process may look for values in vain that many rounds while nothing else can move: a pipeline that drains itself
    // by counting such rounds needs as many as it has stages. After them it counts as stuck.
    static constexpr int VAIN_ROUNDS = 4096;

    std::mutex lock;

    /// The first thing that went wrong; empty while nothing has.
    const std::string &failure() const { return failure_; }

    void add(int processes) { running_ += processes; }

    /// A process has ended, or was never started.
    void remove() {
        if (--running_ == 0)
            stuck();
    }

    /// Every process that waits for a stream wakes and unwinds. The first message stays.
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

    /// Waits until another process lets this one go on.
    void wait(std::unique_lock<std::mutex> &guard, Process &process, State state, const Port *port) {
        process.state = state;
        process.port = port;
        waiting_.push_back(&process);
        if (--running_ == 0)
            stuck();
        process.wake.wait(guard, [&] { return process.state == State::RUNNING; });
    }

    /// Under a stream's operation that moved a value: `mover` did it, `other` is at the stream's other end.
    void moved(Process &mover, Process *other, const Port &port) {
        vain_rounds_ = 0;
        mover.polled.clear();
        if (other == nullptr)
            return;
        const bool polls = std::find(other->polled.begin(), other->polled.end(), &port) != other->polled.end();
        if (polls)
            other->polled.clear();
        const bool waits = other->state == State::READING || other->state == State::WRITING;
        if ((waits && other->port == &port) || (other->state == State::POLLING && polls))
            make_ready(*other);
    }

    /// A process asked a stream in vain. On its second question with nothing changed it has come round: it sleeps until
    /// something does.
    void asked_in_vain(std::unique_lock<std::mutex> &guard, Process &process, const Port &port) {
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

    /// One end of a stream belongs to one process of a region.
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
    int running_ = 0; // processes that neither wait nor have ended
    int vain_rounds_ = 0;
    std::vector<Process *> waiting_;
    std::string failure_;

    /// No process runs: those that poll have another look, and when none may there is a deadlock.
    void stuck() {
        if (waiting_.empty() || !failure_.empty())
            return;
        std::vector<Process *> pollers;
        for (Process *process : waiting_)
            if (process->state == State::POLLING)
                pollers.push_back(process);
        if (!pollers.empty() && vain_rounds_ < VAIN_ROUNDS) {
            ++vain_rounds_;
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
                text += " " + described(*process->port);
                continue;
            }
            text += " polls";
            for (const Port *port : process->polled)
                text += (port == process->polled.front() ? " " : ", ") + described(*port);
            text += " in vain";
        }
        return text + ". A full stream needs more depth; an empty one a writer that comes to it";
    }

    static std::string described(const Port &port) {
        return "stream '" + port.name + "' (" + std::to_string(port.size) + " of " + std::to_string(port.depth) +
               " values)";
    }
};

#endif // HYRT_BOUNDED

/// Who runs now, for messages.
inline std::string here() {
    return current_process ? current_process->name : "code outside any process";
}

} // namespace hyrt

#endif // __SYNTHESIS__
#endif
