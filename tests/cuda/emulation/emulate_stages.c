/* One case with stages around the norm, or of two norms at once; see emulate_case.h. */
#include <stdlib.h>
#include <string.h>

#include "../../c/check.h"
#include "../../c/quantised.h"
#include "emulate_case.h"

/* Whether the next case is chosen, which then begins. */
static bool begin(const char *name, uint64_t *seed) {
    if (!next_of_stages(seed))
        return false;
    test_case("sm_%d x %d: %s", limits.arch, limits.multiprocessors, name);
    return true;
}

/* ---- One norm ------------------------------------------------------------------------------- */

static bool run(bundle *b, schedule how) {
    char text[700] = "";
    begin_run(how);
    return expect(!bundle_run(b, NULL, text, sizeof text), "%s", text) && !write_folder;
}

/* Expects the same bits of another run, with the threads in another order. */
static void run_again(const norm_case *c, uint64_t digest) {
    bundle b;
    bundle_make(&b, c);
    if (run(&b, SHUFFLED))
        expect(bundle_digest(&b) == digest, "other bits with the threads in another order");
    bundle_free(&b);
}

void emulate_stages(const char *name, norm_case c) {
    bundle b;
    if (!case_becomes_l2(&c) || !begin(name, &c.seed))
        return;
    bundle_make(&b, &c);
    reference exact = bundle_reference(&b);
    if (run(&b, IN_ORDER)) {
        bundle_check_against(&b, &exact);
        run_again(&c, bundle_digest(&b));
    }
    reference_free(&exact);
    bundle_free(&b);
}

/* The bytes of q, without y, are those that it has beside y. */
static void without_y(norm_case c, bundle *with) {
    const int64_t elements = c.shape[0] * c.shape[1];
    bundle b;
    c.has &= ~HAS(Y);
    bundle_make(&b, &c);
    if (run(&b, SHUFFLED)) {
        unsigned char *q = bundle_bytes(&b, Q), *wanted = bundle_bytes(with, Q);
        expect(!memcmp(q, wanted, (size_t)elements), "another q without y");
        free(q), free(wanted);
        run_again(&c, bundle_digest(&b));
    }
    bundle_free(&b);
}

void emulate_quantised(const char *name, norm_case c) {
    bundle b;
    if (!case_becomes_l2(&c) || !begin(name, &c.seed))
        return;
    bundle_make(&b, &c);
    if (run(&b, IN_ORDER))
        quantised_check(&b);
    without_y(c, &b);
    bundle_free(&b);
}

/* ---- Two norms ------------------------------------------------------------------------------ */

static void run_pair(bundle b[2], schedule how) {
    char text[700] = "";
    planish_exec exec = {.struct_size = sizeof exec, .message = text, .message_bytes = sizeof text};
    const planish_tensors *const tensors[] = {&b[0].tensors, &b[1].tensors};
    size_t bytes = 0;
    begin_run(how);
    planish_status status = planish_norm_pair_workspace_bytes(
        &b[0].test.op, b[0].test.pass, tensors[0], tensors[1], &bytes, &exec);
    guarded room = guarded_make(bytes, 256);
    exec.workspace = bytes ? room.data : NULL;
    exec.workspace_bytes = bytes;
    if (!status)
        status =
            planish_norm_pair_run(&b[0].test.op, b[0].test.pass, tensors[0], tensors[1], &exec);
    expect(!status, "%s", text);
    guarded_free(&room);
}

void emulate_pair(const char *name, norm_case first, norm_case second) {
    bundle b[2];
    unsigned char *kept[2][PARTS];
    uint64_t seed;
    if (!case_becomes_l2(&first) || !case_becomes_l2(&second))
        return;
    second.op.eps = first.op.eps;
    if (!begin(name, &seed))
        return;
    first.seed = 2 * seed, second.seed = 2 * seed + 1;
    for (int i = 0; i < 2; i++) {
        char text[700] = "";
        bundle_make(&b[i], i ? &second : &first);
        begin_run(IN_ORDER);
        expect(!bundle_run(&b[i], NULL, text, sizeof text), "%s", text);
        if (!write_folder)
            bundle_check(&b[i]);
        bundle_keep_outputs(&b[i], kept[i]);
    }
    for (schedule how = IN_ORDER; how <= SHUFFLED; how++) {
        bundle_clear_outputs(&b[0]);
        bundle_clear_outputs(&b[1]);
        run_pair(b, how);
        for (int i = 0; i < 2 && !write_folder; i++)
            for (part p = 0; p < PARTS; p++)
                if (kept[i][p])
                    expect(!memcmp(kept[i][p], b[i].tensor[p].memory.data,
                                   b[i].tensor[p].memory.bytes),
                           "%d, %s: other bits than alone", i, part_name(p));
    }
    for (int i = 0; i < 2; i++) {
        for (part p = 0; p < PARTS; p++)
            free(kept[i][p]);
        bundle_free(&b[i]);
    }
}
