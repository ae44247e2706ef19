// A gather unit whose queues record the iteration in which each address is accepted: its sum is then in the adder for
// ADDER_LATENCY iterations, in which the address must not be accepted again.
#include <cstdint>
#include <vector>

#include "aggregate.hpp"

namespace recorded {

struct Record {
    const int *addresses;  // addresses of the queues' messages, one queue after the other
    const int *ends;       // end of each queue's messages in `addresses`
    int *accepted, *iterations;
    int num_accepted = 0;
    int iteration = -1;
};

struct Queue {
    Record *record;
    int number;
    int next;
    bool was_valid = false;
    int address = 0;
};

// Called once per iteration and queue, in the order of the queues' numbers.
inline void refill(Queue &queue, hyrt::Head &head) {
    Record &record = *queue.record;
    if (queue.number == 0) record.iteration++;
    if (queue.was_valid && !head.valid) {
        record.accepted[record.num_accepted] = queue.address;
        record.iterations[record.num_accepted++] = record.iteration - 1;
    }
    if (!head.valid && !head.ended) {
        if (queue.next < record.ends[queue.number]) {
            head.message = {record.addresses[queue.next++], false, hyrt::Word(1.0f)};
            head.valid = true;
        } else {
            head.ended = true;
        }
    }
    queue.was_valid = head.valid;
    queue.address = head.message.address;
}

}  // namespace recorded

extern "C" int adder_latency() { return hyrt::ADDER_LATENCY; }

// Gather the messages of three queues into a bank of 16 words. Returns the number of accepted messages.
extern "C" int gather_recorded(const int *addresses, const int *ends, int *accepted, int *iterations, float *sums) {
    recorded::Record record{addresses, ends, accepted, iterations};
    recorded::Queue first{&record, 0, 0}, second{&record, 1, ends[0]}, third{&record, 2, ends[1]};
    std::vector<hyrt::Word> memory(16, hyrt::Word(0.0f));
    hyrt::Word(&bank)[16] = *reinterpret_cast<hyrt::Word(*)[16]>(memory.data());
    hyrt::gather(0, bank, first, second, third);
    for (int i = 0; i < 16; i++) sums[i] = bank[i][0];
    return record.num_accepted;
}
