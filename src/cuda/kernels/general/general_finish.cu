/*
 * Adds up the partial sums of general_backward.cu in their order. Outer axes are those of dweight and dbias.
 *
 * Constants: those of axes.cu.
 */
#include "axes.cu"

extern "C" __global__ void __launch_bounds__(THREADS) planish_general_finish(const axes_args args) {
    wait_for_stream();
    for (i64 column = (i64)blockIdx.x * THREADS + threadIdx.x; column < args.outer_size;
         column += (i64)gridDim.x * THREADS) {
        const place p = outer_place(args, column);
        const double *from = args.partials + column;
        double weight = 0, bias = 0;
        for (i64 part = 0; part < args.parts; part++) {
            weight += from[part * args.outer_size];
            bias += from[(args.parts + part) * args.outer_size];
        }
        write<ROLE_DWEIGHT>(args, p, weight);
        write<ROLE_DBIAS>(args, p, bias);
    }
    release_stream();
}
