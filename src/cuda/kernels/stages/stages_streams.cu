/*
 * A part of stages_backward.cu: where a row's tensors are, and how they come to a thread: those of x's shape
 * by the ring, what varies with columns alone once, the rest row by row.
 */
constexpr int GATE_TYPE = TYPES[ROLE_GATE], BRANCH_TYPE = TYPES[ROLE_BRANCH];
constexpr int SCALE_TYPE = TYPES[ROLE_SCALE], SHIFT_TYPE = TYPES[ROLE_SHIFT];
constexpr int DRESIDUAL_TYPE = TYPES[ROLE_DRESIDUAL], DGATE_TYPE = TYPES[ROLE_DGATE];
constexpr int DSCALE_TYPE = TYPES[ROLE_DSCALE], DSHIFT_TYPE = TYPES[ROLE_DSHIFT];
constexpr int DCOLUMN_SCALE_TYPE = TYPES[ROLE_DCOLUMN_SCALE];
constexpr bool HAS_GATE = GATE_TYPE != NONE, GATE_FIRST = HAS_GATE && GATE_BEFORE, GATE_LAST = HAS_GATE && !GATE_BEFORE;
constexpr bool HAS_DSUM = DSUM_TYPE != NONE, HAS_BRANCH = BRANCH_TYPE != NONE;
constexpr bool HAS_ROW_SCALE = TYPES[ROLE_ROW_SCALE] != NONE, HAS_COLUMN_SCALE = TYPES[ROLE_COLUMN_SCALE] != NONE;
constexpr bool HAS_SCALE = SCALE_TYPE != NONE, HAS_SHIFT = SHIFT_TYPE != NONE, HAS_BIAS = BIAS_TYPE != NONE;
/* Gradients of scale and shift of a row by itself. */
constexpr bool WANT_DSCALE = DSCALE_TYPE != NONE && !BY_SAMPLE, WANT_DSHIFT = DSHIFT_TYPE != NONE && !BY_SAMPLE;
constexpr bool WANT_DGATE_LAST = GATE_LAST && DGATE_TYPE != NONE;
constexpr bool WANT_DCOLUMN = DCOLUMN_SCALE_TYPE != NONE;
/* What is made of dy before the row's sums. */
constexpr bool NEEDS_M = ACTIVE || WANT_DGATE_LAST, NEEDS_Z = NEEDS_M || WANT_DSCALE;
constexpr bool HOLDS_DM = ACTIVE || GATE_LAST;
constexpr bool MEAN_FIRST = NEEDS_Z && LAYER && CORRECT && !MEAN_IS_EXACT; /* the row's own */
/* Of a row whose mean is known when dm is made, the columns' sums and g are made with it, and g is held. */
constexpr bool HOLDS_G = HOLDS_DM && (!LAYER || !CORRECT || MEAN_FIRST || MEAN_IS_EXACT);
constexpr bool MADE_AGAIN = GATE_FIRST; /* s */

/* A row's number, by two axes or (then `inner`) by one, and whether there is such a row. */
struct row_place {
    i64 outer, inner;
    bool there;
};

__device__ __forceinline__ row_place place_of(const row_args &args, i64 row, i64 sample, bool idle) {
    row_place p = {sample, row, !idle && row < args.rows};
    if (!BY_SAMPLE && TWO_LEVELS) {
        p.outer = row / args.inner_rows;
        p.inner = row - p.outer * args.inner_rows;
    }
    return p;
}

template <int ROLE> __device__ __forceinline__ char *address_of(const row_args &args, const row_place &row) {
    const stages_tensor &t = args.tensor[ROLE];
    char *at = (char *)t.data;
    if (VARIES >> ROLE & 1)
        at += row.inner * t.inner + (TWO_LEVELS ? row.outer * t.outer : 0);
    return at;
}

/* A thread's chunk of a tensor, or of one with a single element for the row. */
template <int ROLE> struct part {
    static constexpr int TYPE = TYPES[ROLE];
    static constexpr bool THERE = TYPE != NONE, ONE = ALIKE >> ROLE & 1;
    static constexpr int BYTES = (ONE ? 1 : WIDTH) * bytes_of(TYPE);
    chunk<BYTES> c;

    __device__ __forceinline__ void clear() {
        if constexpr (THERE)
            c = zero_chunk<BYTES>();
    }
    __device__ __forceinline__ void load(const row_args &args, const team_state &t, const row_place &row, int k) {
        if constexpr (THERE) {
            clear();
            if (row.there && t.has(k))
                c = load_chunk<BYTES, ONE ? bytes_of(TYPE) : ACCESSES[ROLE]>(
                    address_of<ROLE>(args, row) + (ONE ? 0 : (i64)(t.rank + k * SPREAD) * BYTES));
        }
    }
    __device__ __forceinline__ real get(int i, real absent = 0) const {
        if constexpr (THERE)
            return element<TYPE>(c.word, ONE ? 0 : i);
        else
            return absent;
    }
    /* Where its chunk k is in the ring, which begins with `before` bytes for a chunk of a thread. */
    __device__ __forceinline__ static u32 slot(int before, int k) {
        return shared_address(dynamic_shared) + CHUNKS_PER_THREAD * THREADS * before +
               (k * THREADS + (int)threadIdx.x) * BYTES;
    }
    __device__ __forceinline__ static void copy(const row_args &args, const team_state &t, const row_place &row,
                                                int before) {
        if constexpr (THERE) {
            constexpr int ACCESS = ACCESSES[ROLE] < 4 || BYTES < 4 ? 4 : ACCESSES[ROLE];
            const char *from = address_of<ROLE>(args, row) + (i64)t.rank * BYTES;
#pragma unroll
            for (int k = 0; k < CHUNKS_PER_THREAD; k++)
                copy_async<most(BYTES, 4), ACCESS>(slot(before, k), from + (i64)k * (SPREAD * BYTES),
                                                   row.there && t.has(k));
        }
    }
    __device__ __forceinline__ void take(int before, int k) {
        if constexpr (THERE)
            c = load_from_shared<BYTES>(slot(before, k));
    }
};

template <int ROLE> __device__ constexpr int ring_bytes() {
    return TYPES[ROLE] == NONE ? 0 : WIDTH * bytes_of(TYPES[ROLE]);
}
constexpr int X_BEFORE = 0, DY_BEFORE = ring_bytes<ROLE_X>(), GATE_PLACE = DY_BEFORE + ring_bytes<ROLE_DY>(),
              DSUM_BEFORE = GATE_PLACE + ring_bytes<ROLE_GATE>(), BRANCH_BEFORE = DSUM_BEFORE + ring_bytes<ROLE_DSUM>();

/* The streams of a row: of the one at hand in registers, of the one to come on its way. */
struct row_streams {
    part<ROLE_X> x[CHUNKS_PER_THREAD];
    part<ROLE_DY> dy[CHUNKS_PER_THREAD];
    part<ROLE_GATE> gate[CHUNKS_PER_THREAD];
    part<ROLE_DSUM> dsum[CHUNKS_PER_THREAD];
    part<ROLE_BRANCH> branch[CHUNKS_PER_THREAD];
    row_place place;
    stored_mean mean, next_mean;
    stored_rstd next_rstd;
    real rstd, row_scale, next_row_scale;

    __device__ __forceinline__ void fetch(const row_args &args, const team_state &t, i64 row, i64 sample) {
        place = place_of(args, row, sample, t.idle);
        if (RING_SLOTS > 0) {
            part<ROLE_X>::copy(args, t, place, X_BEFORE);
            part<ROLE_DY>::copy(args, t, place, DY_BEFORE);
            part<ROLE_GATE>::copy(args, t, place, GATE_PLACE);
            part<ROLE_DSUM>::copy(args, t, place, DSUM_BEFORE);
            part<ROLE_BRANCH>::copy(args, t, place, BRANCH_BEFORE);
            copy_async_commit();
        }
        next_mean = LAYER ? load_mean(address_of<ROLE_MEAN>(args, place), place.there) : 0;
        next_rstd = load_rstd(address_of<ROLE_RSTD>(args, place), place.there);
        next_row_scale = 0;
        if constexpr (HAS_ROW_SCALE)
            if (place.there)
                next_row_scale = load_element<TYPES[ROLE_ROW_SCALE]>(address_of<ROLE_ROW_SCALE>(args, place), 0);
    }
    /* Of the row fetched last. */
    __device__ __forceinline__ void take(const row_args &args, const team_state &t) {
        if (RING_SLOTS > 0)
            copy_async_wait<0>();
#pragma unroll
        for (int k = 0; k < CHUNKS_PER_THREAD; k++)
            if constexpr (RING_SLOTS > 0) {
                x[k].take(X_BEFORE, k);
                dy[k].take(DY_BEFORE, k);
                gate[k].take(GATE_PLACE, k);
                dsum[k].take(DSUM_BEFORE, k);
                branch[k].take(BRANCH_BEFORE, k);
            } else {
                x[k].load(args, t, place, k);
                dy[k].load(args, t, place, k);
                gate[k].load(args, t, place, k);
                dsum[k].load(args, t, place, k);
                branch[k].load(args, t, place, k);
            }
        mean = next_mean;
        rstd = (real)next_rstd;
        row_scale = next_row_scale;
    }
};

/* Adding 0 would be an addition: it changes -0. */
__device__ __forceinline__ real plus_offset(real w) { return WEIGHT_OFFSET ? w + (real)WEIGHT_OFFSET : w; }

/* Weight and bias, the same for every row, as they are in memory. */
struct thread_affine {
    part<ROLE_WEIGHT> weight[CHUNKS_PER_THREAD];
    part<ROLE_BIAS> bias[CHUNKS_PER_THREAD];

    __device__ __forceinline__ void load(const row_args &args, const team_state &t) {
        const row_place any = {0, 0, !t.idle};
#pragma unroll
        for (int k = 0; k < CHUNKS_PER_THREAD; k++) {
            weight[k].load(args, t, any, k);
            if constexpr (NEEDS_Z)
                bias[k].load(args, t, any, k);
        }
    }
    __device__ __forceinline__ real weight_at(int k, int i) const {
        return WEIGHT_TYPE == NONE ? (real)1 : plus_offset(weight[k].get(i));
    }
};
