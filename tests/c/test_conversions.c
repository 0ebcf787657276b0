/*
 * Conversions: every 16-bit number is read right, and every tie between two is rounded to even, in
 * full vectors and in tails, through the pass that scales by 1 and adds nothing.
 */
#include <math.h>
#include <stdlib.h>

#include "cases.h"
#include "check.h"

static const element types[] = {F32, F16, BF16, F64};
enum { TYPES = 4 };

/* y = x, through the pass that scales by 1 and adds nothing. */
static void copy_through(element from, element to, const real *values, int64_t rows, int64_t cols) {
    norm_case c = rows_case(PLANISH_APPLY, PLANISH_RMS, rows, cols);
    c.has = 0;
    c.x = from;
    c.y = to;
    bundle b;
    bundle_make(&b, &c);
    tensor_write(&b.tensor[X].dl, values);
    real *ones = malloc((size_t)rows * sizeof *ones);
    for (int64_t i = 0; i < rows; i++)
        ones[i] = 1;
    tensor_write(&b.tensor[RSTD].dl, ones);
    free(ones);
    char message[512] = "";
    planish_status status = bundle_run(&b, NULL, message, sizeof message);
    expect(status == PLANISH_OK, "%s: %s", planish_status_name(status), message);
    real *got = malloc((size_t)(rows * cols) * sizeof *got);
    tensor_read(&b.tensor[Y].dl, got);
    for (int64_t i = 0; i < rows * cols; i++) {
        real wanted = element_round(to, values[i]);
        bool same = isnan(wanted) ? isnan(got[i]) : got[i] == wanted;
        if (!expect(same, "%.12Lg became %.12Lg, not %.12Lg", values[i], got[i], wanted))
            break;
    }
    free(got);
    bundle_free(&b);
}

static void conversions(void) {
    static const element halves[] = {F16, BF16};
    real *values = malloc(3 * 65536 * sizeof *values);
    for (int h = 0; h < 2; h++) {
        for (int i = 0; i < 65536; i++) {
            uint16_t bits = (uint16_t)i;
            values[i] = element_read(halves[h], &bits);
        }
        for (int t = 0; t < TYPES; t++) {
            test_case("every %s number reads right into %s", element_name(halves[h]),
                      element_name(types[t]));
            copy_through(halves[h], types[t], values, 1024, 64);
            test_case("... in rows of 7 too (the tail)");
            copy_through(halves[h], types[t], values, 9362, 7);
        }
        /* Between each number and the next: the middle, just under and just over it. */
        int64_t count = 0;
        for (int i = 0; i < 65535; i++) {
            uint16_t low = (uint16_t)i, high = (uint16_t)(i + 1);
            real a = element_read(halves[h], &low), b = element_read(halves[h], &high);
            if (!isfinite(a) || isnan(b) || (i & 0x7fff) == 0x7fff)
                continue;
            if (isinf(b)) /* as if the exponent went on: the largest rounds up from halfway */
                b = a > 0 ? a + element_ulp(halves[h], a) : a - element_ulp(halves[h], -a);
            real middle = (a + b) / 2;
            values[count++] = middle;
            values[count++] = (float)middle == middle ? (real)nextafterf((float)middle, 0) : a;
            values[count++] =
                (float)middle == middle
                    ? (real)nextafterf((float)middle, middle > 0 ? INFINITY : -INFINITY)
                    : b;
        }
        for (int wide = 0; wide < 2; wide++) {
            element from = wide ? F64 : F32;
            test_case("every tie rounds to even from %s to %s, and its neighbours to their side",
                      element_name(from), element_name(halves[h]));
            copy_through(from, halves[h], values, count / 60, 60);
            test_case("... in rows of 5 too (the tail)");
            copy_through(from, halves[h], values, count / 5, 5);
        }
    }
    free(values);
}

int main(void) {
    conversions();
    return test_finish("conversions");
}
