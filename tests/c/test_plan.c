/*
 * Plans and workspaces: what a plan's run refuses, that it gives what the one call gives, a
 * workspace that is too small, and the small functions beside them.
 */
#include <stdio.h>
#include <string.h>

#include "cases.h"
#include "check.h"

static void workspace(void) {
    for (planish_kind kind = PLANISH_LAYER; kind <= PLANISH_RMS; kind++) {
        norm_case base = rows_case(PLANISH_BACKWARD, kind, 300, 1000);
        bundle b;
        bundle_make(&b, &base);
        size_t needed = 0;
        test_case("workspace of one byte too few, misaligned or missing is refused");
        expect(planish_norm_workspace_bytes(&b.test.op, PLANISH_BACKWARD, &b.tensors, &needed,
                                            NULL) == PLANISH_OK,
               "no size");
        b.workspace = guarded_make(needed + 512, 256);
        char message[512];
        planish_exec exec = {
            .struct_size = sizeof exec, .message = message, .message_bytes = sizeof message};
        const struct {
            size_t offset, bytes;
            bool null;
        } wrong[] = {{0, needed - 1, false}, {8, needed, false}, {0, 0, false}, {0, needed, true}};
        for (size_t i = 0; needed && i < sizeof wrong / sizeof *wrong; i++) {
            message[0] = 0;
            exec.workspace = wrong[i].null ? NULL : b.workspace.data + wrong[i].offset;
            exec.workspace_bytes = wrong[i].bytes;
            planish_status status =
                planish_norm_run(&b.test.op, PLANISH_BACKWARD, &b.tensors, &exec);
            expect(status == PLANISH_ERROR_WORKSPACE, "%zu: %s", i, planish_status_name(status));
            expect(strstr(message, "workspace"), "%zu: the message is '%s'", i, message);
            for (part p = DX; p <= DBIAS; p++)
                expect(tensor_untouched(&b.tensor[p]), "%zu: %s touched", i, part_name(p));
        }
        expect(needed > 0, "a backward with dweight over 300 rows needs no workspace");
        bundle_free(&b);
    }
}

static void plan_buffers(void) {
    norm_case base = rows_case(PLANISH_FORWARD, PLANISH_LAYER, 5, 7);
    bundle b;
    bundle_make(&b, &base);
    char message[512] = "";
    planish_exec exec = {
        .struct_size = sizeof exec, .message = message, .message_bytes = sizeof message};
    planish_plan *plan = NULL;
    test_case("plan_create makes a plan");
    expect(planish_plan_create(&b.test.op, PLANISH_FORWARD, &b.tensors, &plan, NULL, 0) ==
                   PLANISH_OK &&
               plan,
           "no plan");
    planish_buffers good = {.struct_size = sizeof good};
    for (part p = 0; p < PARTS; p++)
        if (b.tensor[p].memory.mapping)
            *buffers_field(&good, p) = b.tensor[p].memory.data;
    const struct {
        const char *name;
        planish_status status;
        void **field;
        void *value;
        const char *word;
    } wrong[] = {
        {"x NULL", PLANISH_ERROR_NULL_POINTER, &good.x, NULL, "x"},
        {"rstd NULL", PLANISH_ERROR_NULL_POINTER, &good.rstd, NULL, "rstd"},
        {"y on weight", PLANISH_ERROR_OVERLAP, &good.y, good.weight, "y"},
        {"y inside x", PLANISH_ERROR_OVERLAP, &good.y, (char *)good.x + 4, "x"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        test_case("plan_run refuses: %s", wrong[i].name);
        void *kept = *wrong[i].field;
        *wrong[i].field = wrong[i].value;
        message[0] = 0;
        planish_status status = planish_plan_run(plan, &good, &exec);
        expect(status == wrong[i].status, "%s: %s", planish_status_name(status), message);
        expect(strstr(message, wrong[i].word), "the message is '%s'", message);
        expect(tensor_untouched(&b.tensor[Y]), "y was written to");
        *wrong[i].field = kept;
    }
    test_case("plan_run refuses: plan NULL, buffers NULL, sizes unset");
    expect(planish_plan_run(NULL, &good, &exec) == PLANISH_ERROR_NULL_POINTER, "plan NULL");
    expect(planish_plan_run(plan, NULL, &exec) == PLANISH_ERROR_NULL_POINTER, "buffers NULL");
    planish_buffers unset = good;
    unset.struct_size = 0;
    expect(planish_plan_run(plan, &unset, &exec) == PLANISH_ERROR_STRUCT_SIZE, "buffers size 0");
    planish_exec old = exec;
    old.struct_size = 4;
    expect(planish_plan_run(plan, &good, &old) == PLANISH_ERROR_STRUCT_SIZE, "exec size 4");

    test_case("plan_run gives what norm_run gives");
    expect(planish_plan_run(plan, &good, NULL) == PLANISH_OK, "a run with exec NULL");
    bundle_check(&b);
    uint64_t digest = bundle_digest(&b);
    expect(bundle_run(&b, NULL, message, sizeof message) == PLANISH_OK, "%s", message);
    expect(digest == bundle_digest(&b), "other bits");

    test_case("plan_describe writes the whole line, or as much as there is room for");
    char line[256], cut[5];
    int length = planish_plan_describe(plan, line, sizeof line);
    expect(length > 0 && (size_t)length == strlen(line), "length %d of '%s'", length, line);
    expect(planish_plan_describe(plan, cut, sizeof cut) == length && !strncmp(cut, line, 4) &&
               !cut[4],
           "cut to '%s'", cut);
    expect(planish_plan_describe(plan, NULL, 0) == length, "no room");
    planish_plan_destroy(plan);
    planish_plan_destroy(NULL);
    expect(planish_plan_workspace_bytes(NULL) == 0, "workspace of no plan");
    bundle_free(&b);
}

/* Which kernels a layer is run by: a layer that falls back on the general path is right but slow.
 */
/* What planish_norm_supports says: OK and nothing, or a reason; of no data, too. */
static void expect_support(bundle *b, planish_pass pass, bool general) {
    char why[512] = "";
    const planish_status found =
        planish_norm_supports(&b->test.op, pass, &b->tensors, why, sizeof why);
    expect(found == (general ? PLANISH_ERROR_NO_FAST_KERNEL : PLANISH_OK), "supports: %s",
           planish_status_name(found));
    expect(general == (strlen(why) > 20), "supports says '%s'", why);
    expect(planish_norm_supports(&b->test.op, pass, &b->tensors, NULL, 0) == found,
           "supports: another status without room for a message");
    expect(planish_norm_supports(&b->test.op, 9, &b->tensors, why, sizeof why) ==
                   PLANISH_ERROR_ARGUMENT &&
               strstr(why, "pass is 9"),
           "supports says '%s' of pass 9", why);
}

/* Which path takes an image, of (2, 24, 5, 7) where nothing else is said. */
static const struct image_path {
    const char *name, *path;
    image_layer layer;
    int64_t groups;
    layout in, out;
    int64_t shape[4];
} image_paths[] = {
    {"channel norm of NCHW", "channels", CHANNEL_NORM, 1, DENSE, DENSE, {0}},
    {"channel norm of NCHW to NHWC", "channels", CHANNEL_NORM, 1, DENSE, CHANNELS_LAST, {0}},
    {"channel norm of NHWC to NCHW", "channels", CHANNEL_NORM, 1, CHANNELS_LAST, DENSE, {0}},
    {"channel norm of NHWC", "rows", CHANNEL_NORM, 1, CHANNELS_LAST, CHANNELS_LAST, {0}},
    {"channel norm of one pixel", "rows", CHANNEL_NORM, 1, DENSE, DENSE, {2, 24, 1, 1}},
    {"channel norm of padded rows", "channels", CHANNEL_NORM, 1, PADDED, PADDED, {0}},
    {"every second pixel", "strided", CHANNEL_NORM, 1, INNER_STRIDE_2, DENSE, {0}},
    {"GroupNorm of NCHW", "groups", GROUP_NORM, 6, DENSE, DENSE, {0}},
    {"GroupNorm of one group", "groups", GROUP_NORM, 1, DENSE, DENSE, {0}},
    {"GroupNorm of a group for each channel", "groups", GROUP_NORM, 24, DENSE, DENSE, {0}},
    {"InstanceNorm of NCHW", "groups", INSTANCE_NORM, 1, DENSE, DENSE, {0}},
    {"InstanceNorm of NHWC", "pixels", INSTANCE_NORM, 1, CHANNELS_LAST, CHANNELS_LAST, {0}},
    {"GroupNorm of NHWC", "pixels", GROUP_NORM, 6, CHANNELS_LAST, CHANNELS_LAST, {0}},
    {"GroupNorm of one group, NHWC", "pixels", GROUP_NORM, 1, CHANNELS_LAST, CHANNELS_LAST, {0}},
    {"GroupNorm from NHWC to NCHW", "planes", GROUP_NORM, 6, CHANNELS_LAST, DENSE, {0}},
    {"GroupNorm of padded rows", "strided", GROUP_NORM, 6, PADDED, PADDED, {0}},
    {"GroupNorm +silu", "groups", GROUP_NORM, 6, DENSE, DENSE, {0}},
    {"GroupNorm of NHWC +relu", "pixels", GROUP_NORM, 6, CHANNELS_LAST, CHANNELS_LAST, {0}},
    {"channel norm +silu", "channels", CHANNEL_NORM, 1, DENSE, DENSE, {0}},
    {"channel norm, pixels +relu", "rows", CHANNEL_NORM, 1, CHANNELS_LAST, CHANNELS_LAST, {0}},
    {"channel norm, one row +silu", "rows", CHANNEL_NORM, 1, DENSE, DENSE, {1, 24, 1, 1}},
    {"channel norm, padded +relu", "strided", CHANNEL_NORM, 1, REVERSED, DENSE, {0}},
};

static void path_of(const struct image_path *image, planish_pass pass, element type) {
    static const int64_t usual[4] = {2, 24, 5, 7};
    const int64_t *n = image->shape[0] ? image->shape : usual;
    norm_case c =
        image_case(pass, PLANISH_LAYER, image->layer, n[0], n[1], n[2], n[3], image->groups);
    c.x = c.dx = c.y = c.weight = c.grad = type;
    c.in = image->in;
    c.out = image->out;
    c.op.activation = strstr(image->name, "+silu")   ? PLANISH_SILU
                      : strstr(image->name, "+relu") ? PLANISH_RELU
                                                     : PLANISH_IDENTITY;
    test_case("%s takes the path '%s' (pass %d, %s)", image->name, image->path, pass,
              element_name(type));
    bundle b;
    bundle_make(&b, &c);
    planish_plan *plan = NULL;
    char line[256];
    planish_plan_create(&b.test.op, pass, &b.tensors, &plan, NULL, 0);
    planish_plan_describe(plan, line, sizeof line);
    expect(!c.op.activation == !strchr(line, '+'), "%s", line);
    line[strcspn(line, "/")] = 0;
    expect(!strcmp(line, image->path), "it takes '%s'", line);
    const bool general = !strcmp(line, "planes") || !strcmp(line, "strided");
    expect(planish_plan_is_general(plan) == general, "it is general: %d", !general);
    planish_plan_destroy(plan);
    expect_support(&b, pass, general);
    bundle_free(&b);
}

static void paths(void) {
    static const element types[] = {F32, F16, BF16, F64};
    for (size_t i = 0; i < sizeof image_paths / sizeof *image_paths; i++)
        for (planish_pass pass = PLANISH_FORWARD; pass <= PLANISH_BACKWARD; pass++)
            for (int t = 0; t < 4; t++)
                path_of(&image_paths[i], pass, types[t]);
}

static void no_affine(void) {
    test_case("weight standardization is dense rows");
    norm_case c = image_case(PLANISH_FORWARD, PLANISH_LAYER, CHANNEL_NORM, 8, 4, 3, 3, 1);
    c.op.reduce_axes = 0xe;
    c.op.affine_axes = 0;
    c.has &= ~(HAS(WEIGHT) | HAS(BIAS));
    bundle b;
    bundle_make(&b, &c);
    planish_plan *plan = NULL;
    char line[256];
    planish_plan_create(&b.test.op, c.pass, &b.tensors, &plan, NULL, 0);
    planish_plan_describe(plan, line, sizeof line);
    expect(!strncmp(line, "rows/", 5), "it takes '%s'", line);
    planish_plan_destroy(plan);
    bundle_free(&b);
}

static void versions(void) {
    test_case("version, status names and tier");
    expect(planish_version() == PLANISH_VERSION, "version %d", planish_version());
    for (int s = PLANISH_OK; s <= PLANISH_ERROR_FILE; s++)
        expect(!strncmp(planish_status_name((planish_status)s), "PLANISH_", 8), "status %d", s);
    expect(planish_status_name((planish_status)-1) && planish_status_name((planish_status)99),
           "an unknown status has no name");
    expect(strlen(planish_cpu_tier()) > 3, "tier '%s'", planish_cpu_tier());
}

/* planish_tensor_name tells each field's name in its place, and where the fields end. */
static void names(void) {
    planish_tensors t = {0};
    planish_buffers b = {0};
    test_case("names of tensors");
#define SAME(p, field)                                                                             \
    expect(!strcmp(planish_tensor_name(p), #field), "%d is %s", p, planish_tensor_name(p));        \
    expect(tensors_field(&t, p) == &t.field && buffers_field(&b, p) == &b.field,                   \
           #field " is at another place");
    SAME(X, x)
    SAME(WEIGHT, weight)
    SAME(BIAS, bias)
    SAME(Y, y)
    SAME(MEAN, mean)
    SAME(RSTD, rstd)
    SAME(M2, m2)
    SAME(DY, dy)
    SAME(DX, dx)
    SAME(DWEIGHT, dweight)
    SAME(DBIAS, dbias)
#undef SAME
    expect(!planish_tensor_name(sizeof(planish_tensors) / sizeof(void *) - 1) &&
               !planish_tensor_name(-1),
           "a name beyond the last");
}

/* Heads of a part of packed queries, keys and values: rows, whatever leads from one to the next;
 * with a weight for each head the CPU has no kernels but the general ones. */
static void heads(void) {
    static const layout in[] = {DENSE, PACKED, PACKED_HEADS};
    for (planish_pass pass = PLANISH_FORWARD; pass <= PLANISH_BACKWARD; pass++)
        for (int i = 0; i < 12; i++) {
            const bool own = i >= 9;
            norm_case c = rows_case(pass, i % 2 ? PLANISH_RMS : PLANISH_LAYER, 0, 64);
            c.ndim = 4;
            memcpy(c.shape, (int64_t[]){2, 3, 5, 64}, 4 * sizeof *c.shape);
            c.op.reduce_axes = 8;
            c.op.affine_axes = own ? 10 : 8;
            c.in = in[i % 3];
            c.out = i / 3 == 1 ? in[i % 3] : DENSE;
            c.x = c.dx = c.y = i / 3 == 2 ? BF16 : F32;
            const char *path = own ? "strided/" : "rows/";
            test_case("heads of %s tensors take the path '%s' (pass %d)", layout_name(c.in), path,
                      pass);
            bundle b;
            planish_plan *plan = NULL;
            char line[256] = "", message[512] = "";
            bundle_make(&b, &c);
            if (expect(planish_plan_create(&b.test.op, pass, &b.tensors, &plan, message,
                                           sizeof message) == PLANISH_OK,
                       "%s", message)) {
                planish_plan_describe(plan, line, sizeof line);
                expect(!strncmp(line, path, strlen(path)), "'%s'", line);
            }
            planish_plan_destroy(plan);
            bundle_free(&b);
        }
}

int main(void) {
    names();
    workspace();
    plan_buffers();
    paths();
    heads();
    no_affine();
    versions();
    return test_finish("plan");
}
