#include "emulate_case.h"

#include <stdlib.h>
#include <string.h>

#include "../../c/check.h"
#include "emulated.h"

void begin_run(schedule how) {
    order = how;
    fill = how == IN_ORDER ? 0xff : 0x41; /* NaN in every type; an ordinary number */
}

static bool run(bundle *b, schedule how) {
    char text[700] = "";
    begin_run(how);
    planish_status status = bundle_run(b, NULL, text, sizeof text);
    return expect(status == PLANISH_OK, "%s: %s", planish_status_name(status), text);
}

/* Runs rows [first, first + count) of the first axis alone, and expects the bits they had. */
static void check_slice(bundle *b, unsigned char *const *kept, int64_t first, int64_t count) {
    DLTensor part_of[PARTS];
    int64_t shapes[PARTS][PLANISH_MAX_NDIM];
    const planish_tensors whole = b->tensors;
    for (part p = 0; p < PARTS; p++) {
        const DLTensor **field = tensors_field(&b->tensors, p);
        if (!*field || p == WEIGHT || p == BIAS || p == DWEIGHT || p == DBIAS)
            continue;
        part_of[p] = **field;
        memcpy(shapes[p], part_of[p].shape, sizeof *shapes);
        shapes[p][0] = count;
        int64_t dense = 1;
        for (int i = 1; i < part_of[p].ndim; i++)
            dense *= shapes[p][i];
        const int64_t step = part_of[p].strides ? part_of[p].strides[0] : dense;
        part_of[p].shape = shapes[p];
        part_of[p].byte_offset += (uint64_t)(first * step * element_bytes(b->tensor[p].type));
        *field = &part_of[p];
    }
    bundle_clear_outputs(b);
    if (run(b, SHUFFLED) && !write_folder)
        for (part p = 0; p < PARTS; p++) {
            if (!kept[p] || p == DWEIGHT || p == DBIAS)
                continue;
            unsigned char *now = b->tensor[p].memory.data;
            /* What the slice left untouched was untouched by tensor_clear(), too. */
            const int bytes = element_bytes(b->tensor[p].type);
            cursor c = cursor_begin(&part_of[p]);
            bool same = true;
            for (int64_t i = 0, n = element_count(&part_of[p]); i < n; i++, cursor_next(&c))
                same &= !memcmp(c.at, kept[p] + (c.at - now), (size_t)bytes);
            expect(same, "%s: other bits in a slice of the rows", part_name(p));
        }
    b->tensors = whole;
}

/* The output that may be the input itself; PARTS: none. */
static part in_place(const bundle *b, part *input) {
    const norm_case *c = &b->test;
    const bool backward = c->pass == PLANISH_BACKWARD || c->pass == PLANISH_BACKWARD_FROM_Y ||
                          c->pass == PLANISH_BACKWARD_STATISTICS;
    const part output = backward ? DX : Y;
    *input = backward ? DY : X;
    return !b->tensors.m2 && bundle_has_output(b, output) && c->x == c->y && c->in == c->out
               ? output
               : PARTS;
}

/* Runs with the result in the place of x or dy, and expects the same bits. Ends the bundle's use.
 */
static void check_in_place(bundle *b, unsigned char *const *kept) {
    part input, output = in_place(b, &input);
    if (output == PARTS)
        return;
    *tensors_field(&b->tensors, output) = &b->tensor[input].dl;
    if (!run(b, SHUFFLED) || write_folder)
        return;
    tensor *was = &b->tensor[output];
    memcpy(was->memory.data, kept[output], was->memory.bytes);
    expect(tensor_same_bits(&was->dl, &b->tensor[input].dl), "%s: other bits in place of %s",
           part_name(output), part_name(input));
    for (part p = DWEIGHT; p <= DBIAS; p++)
        if (kept[p])
            expect(!memcmp(kept[p], b->tensor[p].memory.data, b->tensor[p].memory.bytes),
                   "%s: other bits with dx in place of dy", part_name(p));
}

static case_choice chosen = {.share = 1, .parts = 1};
static int64_t made;

void choose_cases(case_choice choice) {
    chosen = choice;
}

/* Whether the case of this number is chosen of every share-th. */
static bool is_chosen(int64_t number, int64_t share) {
    /* An unmapped page after the buffers of one case, before those of the next that runs. */
    guard_side = number / share % 2 ? GUARD_START : GUARD_END;
    return !(number % share) && number / share % chosen.parts == chosen.part;
}

bool all_stages_run(void) {
    return chosen.share <= STAGES_SHARE;
}

bool next_of_stages(uint64_t *seed) {
    static int64_t stages_made;
    *seed = (uint64_t)(stages_made + 1 + chosen.other_numbers);
    return is_chosen(stages_made++, all_stages_run() ? 1 : chosen.share / STAGES_SHARE);
}

bool cases_are_l2;

bool case_becomes_l2(norm_case *c) {
    static int turn;
    if (!cases_are_l2)
        return true;
    if (c->op.kind != PLANISH_RMS)
        return false;
    c->op.kind = PLANISH_L2;
    if (turn++ % 2 && c->op.eps == 1e-5)
        case_set_length(c);
    return true;
}

void emulate_case(norm_case c) {
    char text[512];
    if (!case_becomes_l2(&c))
        return;
    if (!is_chosen(made++, chosen.share))
        return;
    c.seed = (uint64_t)(made + chosen.other_numbers);
    test_case("sm_%d x %d: %s", limits.arch, limits.multiprocessors,
              case_text(&c, text, sizeof text));
    bundle b;
    unsigned char *kept[PARTS];
    bundle_make(&b, &c);
    bool good = run(&b, IN_ORDER);
    if (good && !write_folder)
        bundle_check(&b);
    bundle_keep_outputs(&b, kept);
    if (good && !write_folder && run(&b, SHUFFLED))
        for (part p = 0; p < PARTS; p++)
            if (kept[p])
                expect(!memcmp(kept[p], b.tensor[p].memory.data, b.tensor[p].memory.bytes),
                       "%s: other bits with the threads in another order", part_name(p));
    if (good && c.shape[0] > 3 && !((c.op.reduce_axes | b.test.op.affine_axes) & 1))
        check_slice(&b, kept, c.shape[0] / 3, c.shape[0] / 2);
    if (good)
        check_in_place(&b, kept);
    for (part p = 0; p < PARTS; p++)
        free(kept[p]);
    bundle_free(&b);
}

void emulate_numbers(norm_case c, numbers n) {
    c.numbers = n;
    c.op.eps = n == SCALE_TINY ? 0 : 1e-5;
    emulate_case(c);
    c.pass = PLANISH_FORWARD;
    if (n != SUBNORMAL)
        emulate_case(c);
}
