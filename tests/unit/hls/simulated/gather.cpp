// A gather unit whose queues record in which iteration each address is taken: the sum of an address that was taken is
// in the adder for ADDER_LATENCY iterations, so that none may recur before.
#include <cstdint>
#include <vector>

#include "aggregate.hpp"

namespace recorded {

struct Record {
    const int *addresses;  // of the queues' messages, one queue after the other
    const int *ends;       // where each queue's messages end
    int *taken, *iterations;
    int num_taken = 0;
    int iteration = -1;
};

struct Queue {
    Record *record;
    int number;
    int next;
    bool had = false;
    int address = 0;
};

// Called once in each iteration for each queue, in the order of their numbers.
inline void refill(Queue &queue, hyrt::Head &head) {
    Record &record = *queue.record;
    if (queue.number == 0) record.iteration++;
    if (queue.had && !head.here) {
        record.taken[record.num_taken] = queue.address;
        record.iterations[record.num_taken++] = record.iteration - 1;
    }
    if (!head.here && !head.ended) {
        if (queue.next < record.ends[queue.number]) {
            head.message = {record.addresses[queue.next++], false, hyrt::Word(1.0f)};
            head.here = true;
        } else {
            head.ended = true;
        }
    }
    queue.had = head.here;
    queue.address = head.message.address;
}

}  // namespace recorded

extern "C" int adder_latency() { return hyrt::ADDER_LATENCY; }

// Messages of three queues into a bank of 16 words; gives how many were taken.
extern "C" int gather_recorded(const int *addresses, const int *ends, int *taken, int *iterations, float *sums) {
    recorded::Record record{addresses, ends, taken, iterations};
    recorded::Queue first{&record, 0, 0}, second{&record, 1, ends[0]}, third{&record, 2, ends[1]};
    std::vector<hyrt::Word> memory(16, hyrt::Word(0.0f));
    hyrt::Word(&bank)[16] = *reinterpret_cast<hyrt::Word(*)[16]>(memory.data());
    hyrt::gather(0, bank, first, second, third);
    for (int i = 0; i < 16; i++) sums[i] = bank[i][0];
    return record.num_taken;
}
