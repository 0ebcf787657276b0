/* Activations of rows that were gathered: a unit of kernels (cpu/unit.h). */
#include "cpu/rows.h"

#include "cpu/epilogue.h"

/* f of n numbers in place, up to a vector; and of n numbers d, f'(z) times that in place. */
INLINE void NAME(activate_part)(NAME(epilogue) of, REAL *z, int64_t n) {
    if (n >= VEC_LANES)
        STORE_REAL(z, NAME(activated)(of.kind, LOAD_REAL(z)));
    else
        STORE_REAL_PART(z, NAME(activated)(of.kind, LOAD_REAL_PART(z, (int)n)), (int)n);
}
INLINE void NAME(through_part)(NAME(epilogue) of, REAL *d, const REAL *z, int64_t n) {
    if (n >= VEC_LANES)
        STORE_REAL(d, NAME(through)(of, LOAD_REAL(d), LOAD_REAL(z)));
    else
        STORE_REAL_PART(d, NAME(through)(of, LOAD_REAL_PART(d, (int)n), LOAD_REAL_PART(z, (int)n)),
                        (int)n);
}

/* Of a row that was gathered. */
static void NAME(activate_row)(planish_activation f, void *row, int64_t n) {
    const NAME(epilogue) of = {f, V(set1)(1), V(set1)((REAL)-0.0)};
    for (int64_t i = 0; i < n; i += VEC_LANES)
        NAME(activate_part)(of, (REAL *)row + i, n - i);
}
static void NAME(through_row)(planish_activation f, void *row, const void *z, int64_t n) {
    const NAME(epilogue) of = {f, V(set1)(1), V(set1)((REAL)-0.0)};
    for (int64_t i = 0; i < n; i += VEC_LANES)
        NAME(through_part)(of, (REAL *)row + i, (const REAL *)z + i, n - i);
}

DECLARE_REAL(ELEMENT, TIER)
const activation_kernels EXPORT(activations) = {
    .activate = NAME(activate_row),
    .through = NAME(through_row),
};
