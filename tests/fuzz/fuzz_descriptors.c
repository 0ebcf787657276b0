/*
 * Fuzzing of descriptors: shapes, strides, dtypes, devices, pointers, axes and sizes made of random
 * bytes. Whatever they are, planish must not crash, hang, or read or write memory that the
 * descriptors do not name; on failure nothing is written but a message.
 *
 * Every tensor's data lies in one arena, so that tensors overlap often. Wild descriptors, whose
 * data would not fit there, go to the calls that do not look at data.
 *
 * Built for libFuzzer it is a target; fuzz_main.c drives it with seeded numbers where there is
 * none.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planish.h"
#include "roles.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ARENA = 1 << 14, MAX_ELEMENTS = 1 << 12, MAX_WORKSPACE = 1 << 22 };

/* What each role is, from the table of roles. */
static const struct {
    role_axes axes;
    role_types types;
    unsigned takes, writes; /* sets of passes */
} roles[ROLE_COUNT] = {
#define ROW(arg, role, field, axes, kinds, needed, optional, activated, written, over, types)      \
    {AXES_##axes, TYPES_##types, (needed) | (optional) | (activated), (written)},
    EACH_ROLE(ROW, )
#undef ROW
};

static _Alignas(256) unsigned char arena[ARENA], before[ARENA], owned[ARENA];
static _Alignas(256) unsigned char workspace[MAX_WORKSPACE];

/* The input, one byte after another; zeros when it is used up. */
typedef struct bytes {
    const uint8_t *at, *end;
} bytes;

static unsigned take(bytes *b) {
    return b->at < b->end ? *b->at++ : 0;
}

static uint64_t take_word(bytes *b) {
    uint64_t word = 0;
    for (int i = 0; i < 8; i++)
        word = word << 8 | take(b);
    return word;
}

/* Mostly a small size; now and then a wild one. */
static int64_t take_size(bytes *b) {
    unsigned kind = take(b);
    if (kind < 240)
        return kind % 8;
    return kind < 250 ? (int64_t)take(b) : (int64_t)take_word(b);
}

static int64_t take_stride(bytes *b, int64_t dense) {
    unsigned kind = take(b);
    if (kind < 128)
        return dense;
    if (kind < 240)
        return (int64_t)(kind % 16) - 8;
    return kind < 248 ? (int64_t)(0 - (uint64_t)dense) : (int64_t)take_word(b);
}

static DLDataType take_dtype(bytes *b, role_types types) {
    static const DLDataType good[][4] = {
        [TYPES_REAL] = {{kDLFloat, 32, 1},
                        {kDLFloat, 16, 1},
                        {kDLBfloat, 16, 1},
                        {kDLFloat, 64, 1}},
        [TYPES_FLOAT] = {{kDLFloat, 32, 1},
                         {kDLFloat, 32, 1},
                         {kDLFloat, 32, 1},
                         {kDLFloat, 32, 1}},
        [TYPES_BYTE] = {{kDLUInt, 8, 1}, {kDLBool, 8, 1}, {kDLUInt, 8, 1}, {kDLInt, 8, 1}},
        [TYPES_SEED] = {{kDLUInt, 64, 1}, {kDLInt, 64, 1}, {kDLUInt, 64, 1}, {kDLInt, 64, 1}},
        [TYPES_QUANTISED] = {{kDLFloat8_e4m3fn, 8, 1},
                             {kDLFloat8_e5m2, 8, 1},
                             {kDLInt, 8, 1},
                             {kDLFloat8_e4m3fn, 8, 1}},
        [TYPES_BLOCK_SCALE] = {
            {kDLFloat, 32, 1}, {kDLFloat8_e8m0fnu, 8, 1}, {kDLFloat, 32, 1}, {kDLFloat, 32, 1}}};
    unsigned kind = take(b);
    if (kind < 248)
        return good[types][kind % 4];
    return (DLDataType){(uint8_t)take(b), (uint8_t)take(b), (uint16_t)take(b)};
}

typedef struct made {
    DLTensor dl;
    int64_t shape[PLANISH_MAX_NDIM + 2], strides[PLANISH_MAX_NDIM + 2];
    int64_t count;     /* elements; -1 where it is wild */
    int64_t low, high; /* bytes it touches, from its first element */
    int64_t start;     /* where in the arena its first element is */
} made;

/* Whether the sizes and strides fit the arena; fills in count, low and high. */
static int measure(made *m) {
    m->count = 1;
    m->low = m->high = 0;
    int64_t size = m->dl.dtype.bits / 8;
    if (m->dl.ndim < 0 || m->dl.ndim > PLANISH_MAX_NDIM)
        return 0;
    for (int i = 0; i < m->dl.ndim; i++) {
        if (m->shape[i] < 0 || m->shape[i] > MAX_ELEMENTS || m->strides[i] > ARENA ||
            m->strides[i] < -ARENA)
            return 0;
        m->count *= m->shape[i];
        if (m->count > MAX_ELEMENTS)
            return 0;
        int64_t reach = (m->shape[i] - 1) * m->strides[i] * size;
        if (reach < 0)
            m->low += reach;
        else
            m->high += reach;
    }
    m->high += size;
    return m->high - m->low <= ARENA;
}

/* The axes of x that a role has. */
static uint64_t mask_of(role_axes axes, const planish_norm *op) {
    switch (axes) {
    case AXES_AFFINE:
        return op->affine_axes;
    case AXES_KEPT:
    case AXES_BLOCKS:
        return ~op->reduce_axes;
    case AXES_COLUMN:
        return op->column_axes ? op->column_axes : op->affine_axes;
    case AXES_MODULATION:
        return op->modulation_axes;
    default:
        return axes == AXES_FULL ? ~(uint64_t)0 : 0;
    }
}

/* How many blocks of scale_block elements a row has. */
static int64_t blocks_of(const planish_norm *op, int ndim, const int64_t *sizes) {
    int64_t row = 1;
    for (int i = 0; i < ndim; i++)
        if ((op->reduce_axes >> i & 1) && __builtin_mul_overflow(row, sizes[i], &row))
            return 0;
    return row > 0 ? (row - 1) / op->scale_block + 1 : 0;
}

/* A tensor of role r, spoilt now and then; whether it fits the arena. */
static int take_tensor(bytes *b, made *m, role r, const planish_norm *op, int ndim,
                       const int64_t *sizes, int full_rank) {
    const role_axes axes = roles[r].axes;
    const uint64_t mask = mask_of(axes, op);
    if (axes == AXES_ONE || axes == AXES_PAIR)
        full_rank = ndim = 0;
    memset(m, 0, sizeof *m);
    for (int i = 0; i < ndim; i++) {
        if (mask >> i & 1)
            m->shape[m->dl.ndim++] = sizes[i];
        else if (full_rank)
            m->shape[m->dl.ndim++] = 1;
    }
    if (axes == AXES_ONE || axes == AXES_PAIR)
        m->shape[m->dl.ndim++] = axes == AXES_PAIR ? 2 : 1;
    if (axes == AXES_BLOCKS && op->scale_block > 0)
        m->shape[m->dl.ndim++] = blocks_of(op, ndim, sizes);
    m->dl.device.device_type = kDLCPU;
    m->dl.dtype = take_dtype(b, roles[r].types);
    m->dl.shape = m->shape;
    unsigned spoil = take(b);
    if (spoil == 255)
        m->dl.ndim = (int32_t)take_word(b);
    else if (spoil == 254)
        m->dl.ndim = PLANISH_MAX_NDIM + 1;
    else if (spoil == 253)
        m->dl.shape = NULL;
    else if (spoil == 252)
        m->dl.device.device_type = (DLDeviceType)(take(b) % 20);
    else if (spoil > 244 && m->dl.ndim)
        m->shape[take(b) % (unsigned)m->dl.ndim] = take_size(b);
    int64_t dense = 1;
    for (int64_t i = (int64_t)m->dl.ndim - 1; i >= 0 && i < PLANISH_MAX_NDIM; i--) {
        m->strides[i] = spoil % 2 ? take_stride(b, dense) : dense;
        if (__builtin_mul_overflow(dense, m->shape[i], &dense))
            dense = 1;
    }
    m->dl.strides = spoil % 2 ? m->strides : NULL;
    if (spoil > 251 || !measure(m))
        return m->count = -1, 0;
    int64_t room = ARENA - (m->high - m->low);
    int64_t size = m->dl.dtype.bits / 8 ? m->dl.dtype.bits / 8 : 1;
    m->start = (int64_t)(take(b) << 8 | take(b)) % (room + 1) / size * size - m->low;
    m->dl.data = arena;
    m->dl.byte_offset = (uint64_t)m->start;
    return 1;
}

static void mark_owned(const made *m) {
    int64_t index[PLANISH_MAX_NDIM] = {0}, size = m->dl.dtype.bits / 8;
    for (int64_t e = 0; e < m->count; e++) {
        int64_t at = m->start;
        for (int i = 0; i < m->dl.ndim; i++)
            at += index[i] * m->strides[i] * size;
        memset(owned + at, 1, (size_t)size);
        for (int i = m->dl.ndim - 1; i >= 0 && ++index[i] == m->shape[i]; i--)
            index[i] = 0;
    }
}

static void require(int holds, const char *what, const char *message) {
    if (holds)
        return;
    fprintf(stderr, "fuzz_descriptors: %s (message: %s)\n", what, message);
    abort();
}

/* Every item from the last to the first; counts calls, to bound how often it is used. */
static int forks;
static void in_reverse(void *context, int64_t count, planish_task task, void *task_data) {
    (void)context;
    forks++;
    for (int64_t i = count; i > 0; i--)
        task(task_data, i - 1, i);
}

static int known(planish_pass pass) {
    return pass >= 0 && pass <= PLANISH_BACKWARD_STATISTICS;
}

/* What of the operator belongs to stages: each is there now and then. */
static void take_stages(bytes *b, planish_norm *op, unsigned axes) {
    const unsigned there = take(b);
    if (there & 1)
        op->activation = (planish_activation)(take(b) % 7);
    if (there & 2)
        op->modulation_axes = take(b) % axes;
    if (there & 4)
        op->column_axes = take(b) % axes;
    if (there & 8)
        op->gate = PLANISH_GATE_BEFORE;
    if (there & 16)
        op->rounding = PLANISH_ROUND_XHAT;
    if (there & 32)
        op->dropout_p = take(b) / 256.0;
    if (there & 64)
        op->scale_block = take(b) % 8;
    if (there & 128)
        op->scale_format = PLANISH_SCALE_POWER_OF_TWO;
    op->momentum = 0.1;
}

/* Which tensors a call has: mostly those of the norm alone that the pass takes; those of stages one
 * in eight. */
static role_set take_roles(bytes *b, planish_pass pass, const planish_norm *op, int staged) {
    role_set wanted = 0;
    for (int r = 0; r < ROLE_COUNT; r++)
        if (!known(pass) || roles[r].takes >> pass & 1)
            wanted |= ROLE_BIT(r);
    if (op->kind == PLANISH_RMS)
        wanted &= ~ROLE_BIT(ROLE_MEAN);
    const unsigned drop = take(b) << 8 | take(b);
    for (int r = 0; r < NORM_ROLES; r++)
        if (drop >> r & 1 && take(b) <= 100)
            wanted &= ~ROLE_BIT(r);
    for (int r = NORM_ROLES; r < ROLE_COUNT; r++)
        if ((wanted & ROLE_BIT(r)) && (!staged || take(b) % 8))
            wanted &= ~ROLE_BIT(r);
    return wanted;
}

static planish_norm take_operator(bytes *b, planish_pass *pass, int *ndim, int *staged) {
    planish_norm op = {.struct_size = sizeof op};
    *pass = (planish_pass)(take(b) % 6);
    op.kind = (planish_kind)(take(b) % 2);
    op.weight_offset = (int32_t)(take(b) % 2);
    *ndim = (int)(take(b) % 6);
    op.reduce_axes = take(b) % (1u << *ndim);
    op.affine_axes = take(b) % (1u << *ndim);
    op.eps = 1e-5;
    *staged = take(b) % 2;
    if (*staged)
        take_stages(b, &op, 1u << *ndim);
    unsigned spoil = take(b);
    if (spoil == 255)
        op.reduce_axes = take_word(b);
    else if (spoil == 254)
        op.affine_axes = take_word(b);
    else if (spoil == 253)
        *pass = (planish_pass)take_word(b);
    else if (spoil == 252)
        op.struct_size = take(b);
    else if (spoil == 251) {
        uint64_t word = take_word(b);
        memcpy(&op.eps, &word, sizeof op.eps);
    } else if (spoil == 250)
        op.kind = (planish_kind)take_word(b);
    return op;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bytes b = {data, data + size};
    planish_pass pass;
    int ndim, staged;
    planish_norm op = take_operator(&b, &pass, &ndim, &staged);
    /* The struct of a later header is longer, and what the library does not know may be set. */
    static _Alignas(planish_norm) unsigned char longer[256];
    memset(longer, 0, sizeof longer);
    memcpy(longer, &op, sizeof op);
    if (op.struct_size > sizeof op)
        longer[sizeof op + take(&b) % (sizeof longer - sizeof op)] = (unsigned char)take(&b);
    const planish_norm *given = (const planish_norm *)(const void *)longer;

    int64_t sizes[8];
    for (int i = 0; i < ndim; i++)
        sizes[i] = take_size(&b);
    static made part[ROLE_COUNT];
    const DLTensor *list[ROLE_COUNT] = {NULL};
    const int full_rank = (int)(take(&b) % 2);
    int fits = 1;
    for (role_set wanted = take_roles(&b, pass, &op, staged); wanted; wanted &= wanted - 1) {
        const role r = first_role(wanted);
        fits &= take_tensor(&b, &part[r], r, &op, ndim, sizes, full_rank);
        list[r] = &part[r].dl;
    }
    const planish_tensors tensors = tensors_of_roles(list);

    char message[128] = {0};
    memset(message + 1, '#', sizeof message - 1);
    unsigned room = take(&b) % 120;
    planish_exec exec = {.struct_size = sizeof exec,
                         .parallel_for = in_reverse,
                         .message = message,
                         .message_bytes = room};
    size_t needed = 0;
    planish_status asked = planish_norm_workspace_bytes(given, pass, &tensors, &needed, &exec);
    for (size_t i = room ? room : 1; i < sizeof message; i++)
        require(message[i] == '#', "a message past its room", "");
    require(asked == PLANISH_OK ? message[0] == 0 : !room || memchr(message, 0, room) != NULL,
            "a message without its end, or on success", message);

    planish_plan *plan = NULL;
    planish_status planned = planish_plan_create(given, pass, &tensors, &plan, NULL, 0);
    require(planned == asked, "a plan's status is not workspace_bytes'", message);
    require((planned == PLANISH_OK) == (plan != NULL), "*plan does not go with the status", "");
    require(!plan || planish_plan_workspace_bytes(plan) == needed, "another workspace size", "");
    char line[64];
    if (plan)
        require(planish_plan_describe(plan, line, sizeof line) > 0, "no description", "");
    planish_plan_destroy(plan);
    if (!fits || needed > MAX_WORKSPACE)
        return 0;

    unsigned fill = take(&b);
    for (int i = 0; i < ARENA; i++)
        arena[i] = (unsigned char)(fill + (unsigned)i * 37 + (unsigned)(i >> 3));
    memcpy(before, arena, ARENA);
    exec.workspace = workspace;
    exec.workspace_bytes = needed;
    forks = 0;
    planish_status status = planish_norm_run(given, pass, &tensors, &exec);
    if (asked != PLANISH_OK)
        require(status == asked, "run's status is not workspace_bytes'", message);
    require(forks <= 2, "more than two parallel loops", "");
    memset(owned, 0, ARENA);
    for (int r = 0; r < ROLE_COUNT && status == PLANISH_OK; r++)
        if (list[r] && known(pass) && roles[r].writes >> pass & 1)
            mark_owned(&part[r]);
    for (int i = 0; i < ARENA; i++)
        require(owned[i] || arena[i] == before[i], "a write outside the outputs", message);
    return 0;
}
