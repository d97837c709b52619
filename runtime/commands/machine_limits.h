// What the machine could do at most, measured: how fast memory is read, and how fast int8 products
// are summed. Speeds of a model are compared with these.

#ifndef VOLVELLE_RUNTIME_COMMANDS_MACHINE_LIMITS_H_
#define VOLVELLE_RUNTIME_COMMANDS_MACHINE_LIMITS_H_

#include "platforms/thread_pool.h"

namespace volvelle {

// Bytes a second that the pool's threads read together from a buffer that no cache holds, front to
// back; the best of several passes. 0 where memory for the buffer is short. Takes a second or less.
double measure_read_bandwidth(const ThreadPool& pool);

// Multiplications and additions of int8 a second (two for each product that is summed in int32)
// that the pool's threads do together in registers, by the processor's best instruction for
// vectors; the best of several passes. Matrix units (AMX, SME) are not counted.
double measure_int8_peak(const ThreadPool& pool);

}  // namespace volvelle

#endif  // VOLVELLE_RUNTIME_COMMANDS_MACHINE_LIMITS_H_
