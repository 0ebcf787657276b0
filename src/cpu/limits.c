/* What this machine offers to plans: its kernels, how they are tuned, and where its caches end. */
#include "cpu/dispatch.h"
#include "cpu/plan.h"

cpu_limits cpu_limits_of(const cpu_tuning *tuning, const cpu_kernels *kernels, size_t first_cache,
                         size_t shared_cache) {
    const size_t share = shared_cache / (size_t)tuning->stream_rows_share;
    const size_t least = tuning->stream_rows_least, most = tuning->stream_rows_most;
    return (cpu_limits){
        .kernels = kernels,
        .tuning = tuning,
        .first_bytes = first_cache,
        .stream_rows_bytes = share < least  ? least
                             : share > most ? most
                                            : share,
    };
}

cpu_limits cpu_limits_here(void) {
    const cpu_identity id = cpu_identify();
    return cpu_limits_of(cpu_tuning_of(id.microarchitecture), cpu_kernels_chosen(), id.first_cache,
                         id.shared_cache);
}
