/* One case with stages around the norm, or of two norms at once; see emulate_case.h. */
#include <stdlib.h>
#include <string.h>

#include "../../c/check.h"
#include "../../c/staged_check.h"
#include "emulate_case.h"

/* Whether the next case is chosen, which then begins. */
static bool begin(const char *name, uint64_t *seed) {
    if (!next_of_stages(seed))
        return false;
    test_case("sm_%d x %d: %s", limits.arch, limits.multiprocessors, name);
    return true;
}

/* ---- Forward -------------------------------------------------------------------------------- */

static bool run_forward(staged_run *r, schedule how) {
    char text[700] = "";
    begin_run(how);
    return expect(!staged_forward(r, NULL, text, sizeof text), "%s", text) && !write_folder;
}

/* Expects the same bits of another run, with the threads in another order. */
static void forward_again(const staged_case *c, uint64_t digest) {
    staged_run r;
    staged_make(&r, c);
    if (run_forward(&r, SHUFFLED))
        expect(staged_digest(&r) == digest, "other bits with the threads in another order");
    staged_free(&r);
}

void emulate_forward(const char *name, staged_case c) {
    staged_run r;
    if (!case_becomes_l2(&c.op.kind, &c.op.eps, c.ndim, c.shape, c.op.reduce_axes))
        return;
    if (!begin(name, &c.seed))
        return;
    staged_make(&r, &c);
    staged_reference f = staged_reference_of(&r);
    if (run_forward(&r, IN_ORDER)) {
        staged_check(&r, &f);
        forward_again(&c, staged_digest(&r));
    }
    staged_reference_free(&f);
    staged_free(&r);
}

/* The bytes of q, without y, are those that it has beside y. */
static void without_y(staged_case c, staged_run *with) {
    const int64_t elements = c.shape[0] * c.shape[1];
    staged_run r;
    c.has &= ~PART(S_Y);
    staged_make(&r, &c);
    if (run_forward(&r, SHUFFLED)) {
        unsigned char *q = staged_bytes(&r, S_Q), *wanted = staged_bytes(with, S_Q);
        expect(!memcmp(q, wanted, (size_t)elements), "another q without y");
        free(q), free(wanted);
        forward_again(&c, staged_digest(&r));
    }
    staged_free(&r);
}

void emulate_quantised(const char *name, staged_case c) {
    staged_run r;
    if (!case_becomes_l2(&c.op.kind, &c.op.eps, c.ndim, c.shape, c.op.reduce_axes))
        return;
    if (!begin(name, &c.seed))
        return;
    staged_make(&r, &c);
    if (run_forward(&r, IN_ORDER))
        quantised_check(&r);
    without_y(c, &r);
    staged_free(&r);
}

/* ---- Backward ------------------------------------------------------------------------------- */

static bool run_backward(backward_run *r, schedule how) {
    char text[700] = "";
    begin_run(how);
    return expect(!backward_do(r, NULL, text, sizeof text), "%s", text) && !write_folder;
}

void emulate_backward(const char *name, backward_case c) {
    backward_run r, again;
    if (!case_becomes_l2(&c.op.kind, &c.op.eps, c.ndim, c.shape, c.op.reduce_axes))
        return;
    if (!begin(name, &c.seed))
        return;
    backward_make(&r, &c);
    backward_reference f = backward_reference_of(&r);
    if (run_backward(&r, IN_ORDER)) {
        backward_check(&r, &f);
        backward_make(&again, &c);
        if (run_backward(&again, SHUFFLED))
            expect(backward_digest(&again) == backward_digest(&r),
                   "other bits with the threads in another order");
        backward_free(&again);
    }
    backward_reference_free(&f);
    backward_free(&r);
}

/* ---- Two norms ------------------------------------------------------------------------------ */

static void run_pair(bundle b[2], schedule how) {
    char text[700] = "";
    planish_exec exec = {.struct_size = sizeof exec, .message = text, .message_bytes = sizeof text};
    const planish_tensors *const tensors[] = {&b[0].tensors, &b[1].tensors};
    size_t bytes = 0;
    begin_run(how);
    planish_status status = planish_norm_pair_workspace_bytes(&b[0].op, b[0].test.pass, tensors[0],
                                                              tensors[1], &bytes, &exec);
    guarded room = guarded_make(bytes, 256);
    exec.workspace = bytes ? room.data : NULL;
    exec.workspace_bytes = bytes;
    if (!status)
        status = planish_norm_pair_run(&b[0].op, b[0].test.pass, tensors[0], tensors[1], &exec);
    expect(!status, "%s", text);
    guarded_free(&room);
}

void emulate_pair(const char *name, norm_case first, norm_case second) {
    bundle b[2];
    unsigned char *kept[2][PARTS];
    uint64_t seed;
    if (!case_becomes_l2(&first.kind, &first.eps, first.ndim, first.shape, first.reduce_axes) ||
        !case_becomes_l2(&second.kind, &second.eps, second.ndim, second.shape, second.reduce_axes))
        return;
    second.eps = first.eps;
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
