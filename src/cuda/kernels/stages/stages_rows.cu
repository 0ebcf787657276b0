/*
 * A part of stages_forward.cu: where a row's tensors are, and how s is made of them.
 */
constexpr int IN_TYPE = TYPES[ROLE_BRANCH];
constexpr bool HAS_GATE = TYPES[ROLE_GATE] != NONE, HAS_SUM = TYPES[ROLE_SUM] != NONE;
constexpr bool HAS_MASK = TYPES[ROLE_MASK] != NONE, HAS_RESIDUAL = TYPES[ROLE_RESIDUAL] != NONE;
constexpr bool HAS_ROW_SCALE = TYPES[ROLE_ROW_SCALE] != NONE, HAS_COLUMN_SCALE = TYPES[ROLE_COLUMN_SCALE] != NONE;
constexpr bool GATE_FIRST = HAS_GATE && GATE_BEFORE, GATE_LAST = HAS_GATE && !GATE_BEFORE;
/* Else s is x itself, bit by bit. */
constexpr bool MADE = HAS_RESIDUAL || HAS_ROW_SCALE || HAS_COLUMN_SCALE || DROPOUT || GATE_FIRST || IN_TYPE != X_TYPE;
constexpr bool IN_REGISTERS = HOLD == HOLD_IN_REGISTERS;
/* The gate behind the norm waits in shared memory for its row's sums, by copies that go beside the loads of x:
 * registers that it would take are those of another block. A thread reads back what it copied itself. */
constexpr bool GATE_WAITS = GATE_IN_SHARED && GATE_LAST && IN_REGISTERS;
/* Chunks of a row that are asked for before the first is looked at. */
constexpr int AT_ONCE = IN_REGISTERS ? CHUNKS_PER_THREAD : least(CHUNKS_PER_THREAD, 4);

/* A row's number, by two axes or (then `inner`) by one. */
struct row_number {
    i64 outer, inner;
};

__device__ __forceinline__ row_number number_of(const row_args &args, i64 row) {
    if (!TWO_LEVELS)
        return {0, row};
    if (((row | args.inner_rows) >> 32) == 0) {
        const u32 outer = (u32)row / (u32)args.inner_rows;
        return {outer, (u32)row - outer * (u32)args.inner_rows};
    }
    const i64 outer = row / args.inner_rows;
    return {outer, row - outer * args.inner_rows};
}

/* Where a row of a tensor begins. */
template <int ROLE>
__device__ __forceinline__ char *address_of(const row_args &args, const row_number &row) {
    const stages_tensor &t = args.tensor[ROLE];
    char *at = (char *)t.data;
    if (VARIES >> ROLE & 1)
        at += row.inner * t.inner + (TWO_LEVELS ? row.outer * t.outer : 0);
    return at;
}

/* Where chunk k of a thread is, of a row of chunks of BYTES: one place, and a constant where k is one. */
template <int BYTES> __device__ __forceinline__ i64 part_place(const place &p, int k) {
    return (i64)p.rank * BYTES + k * (SPREAD * BYTES);
}

/* A thread's chunk of a tensor, or of one with a single element for the row. */
template <int ROLE> struct part {
    static constexpr int TYPE = TYPES[ROLE];
    static constexpr bool THERE = TYPE != NONE, ONE = ALIKE >> ROLE & 1;
    static constexpr int BYTES = (ONE ? 1 : WIDTH) * bytes_of(TYPE);
    chunk<BYTES> c;

    __device__ __forceinline__ void load(const row_args &args, const place &p, const row_number &row, int k) {
        if constexpr (THERE)
            c = load_chunk<BYTES, ONE ? bytes_of(TYPE) : ACCESSES[ROLE]>(
                address_of<ROLE>(args, row) + (ONE ? 0 : part_place<BYTES>(p, k)));
    }
    __device__ __forceinline__ real get(int i) const { return element<TYPE>(c.word, ONE ? 0 : i); }
};

/* Of the gate where it waits: chunk k of row u of this thread. */
__device__ __forceinline__ u32 gate_slot(int u, int k) {
    return shared_address(dynamic_shared) + ((u * CHUNKS_PER_THREAD + k) * THREADS + (int)threadIdx.x) * part<ROLE_GATE>::BYTES;
}
__device__ __forceinline__ void copy_gate(const row_args &args, const place &p, const row_number &row, int u,
                                          int k, bool has) {
    if constexpr (GATE_WAITS)
        copy_async<GATE_WAITS ? part<ROLE_GATE>::BYTES : 4, GATE_WAITS ? ACCESSES[ROLE_GATE] : 4>(
            gate_slot(u, k),
            address_of<ROLE_GATE>(args, row) + (i64)(p.rank + k * SPREAD) * part<ROLE_GATE>::BYTES, has);
}

/* The weights where they wait: chunk k of this thread. */
constexpr bool WEIGHT_WAITS = EARLY == EARLY_IN_SHARED;
__device__ __forceinline__ u32 weight_slot(int k) {
    return shared_address(dynamic_shared) + (k * THREADS + (int)threadIdx.x) * part<ROLE_WEIGHT>::BYTES;
}
__device__ __forceinline__ void copy_weights(const row_args &args, const place &p, const row_number &row) {
    if constexpr (WEIGHT_WAITS) {
#pragma unroll
        for (int k = 0; k < CHUNKS_PER_THREAD; k++)
            if (p.has(k))
                copy_async<WEIGHT_WAITS ? part<ROLE_WEIGHT>::BYTES : 4, WEIGHT_WAITS ? ACCESSES[ROLE_WEIGHT] : 4>(
                    weight_slot(k), address_of<ROLE_WEIGHT>(args, row) + part_place<part<ROLE_WEIGHT>::BYTES>(p, k), true);
        copy_async_commit();
    }
}

/* Stores WIDTH bytes. */
template <int ACCESS> __device__ __forceinline__ void store_bytes(char *address, const u32 *byte) {
    if constexpr (WIDTH >= 2 && ACCESS >= 2) {
        auto c = zero_chunk<WIDTH>();
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            c.word[i / 4] |= byte[i] << 8 * (i % 4);
        store_chunk<WIDTH, ACCESS>(address, c);
    } else {
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            address[i] = (char)byte[i];
    }
}

/* The same, packed. */
template <int ACCESS> __device__ __forceinline__ void store_words(char *address, const chunk<WIDTH> &c) {
    if constexpr (WIDTH >= 2 && ACCESS >= 2)
        store_chunk<WIDTH, ACCESS>(address, c);
    else
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            address[i] = (char)(c.word[i / 4] >> 8 * (i % 4));
}

/* What s is made of. */
struct inputs {
    part<ROLE_BRANCH> x;
    part<ROLE_RESIDUAL> residual;
    part<ROLE_COLUMN_SCALE> column;
    part<ROLE_GATE> gate;

    __device__ __forceinline__ void load(const row_args &args, const place &p, const row_number &row, int k) {
        x.load(args, p, row, k);
        residual.load(args, p, row, k);
        column.load(args, p, row, k);
        if constexpr (GATE_FIRST)
            gate.load(args, p, row, k);
    }
};

/* Whether registers hold a row as numbers: y takes their place soon. */
constexpr bool AS_NUMBERS = TYPES[ROLE_Q] != NONE && IN_REGISTERS && bytes_of(X_TYPE) == 2 && sizeof(real) == 4 &&
                            VARIANT == ROWS_PLAIN && (!CENTRED || ROWS == 1) && CHUNKS_PER_THREAD * WIDTH <= 32;
struct numbers {
    real v[WIDTH];
};
__device__ __forceinline__ real value_of(const numbers &n, int i) { return n.v[i]; }
/* Of what is held as words; numbers have none. */
__device__ __forceinline__ chunk<X_BYTES> words_of(const chunk<X_BYTES> &c) { return c; }
__device__ __forceinline__ chunk<X_BYTES> words_of(const numbers &) { return zero_chunk<X_BYTES>(); }
__device__ __forceinline__ void forget_numbers(numbers &, u32) {}

template <bool AS_NUMBERS> struct taken_chunk {
    typedef chunk<X_BYTES> type;
    __device__ __forceinline__ static type of(const chunk<X_BYTES> &c) { return c; }
};
template <> struct taken_chunk<true> {
    typedef numbers type;
    __device__ __forceinline__ static type of(const chunk<X_BYTES> &c) {
        numbers n;
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            n.v[i] = element<X_TYPE>(c.word, i);
            keep(n.v[i]);
        }
        return n;
    }
};
typedef taken_chunk<AS_NUMBERS> taken;

/* A thread's chunks of a row's s, wherever they are. */
struct row_reader {
    taken::type held[IN_REGISTERS ? CHUNKS_PER_THREAD : 1];
    part<ROLE_GATE> gate[IN_REGISTERS && GATE_LAST && !GATE_WAITS ? CHUNKS_PER_THREAD : 1];
    int u; /* its number in the team's turn */
    u32 slot; /* HOLD_IN_SHARED */
    bool there;
    row_number number;
    real row_scale;
    /* For s made again. */
    const row_args *args;
    const place *where;
    const philox_key *key;

    __device__ __forceinline__ taken::type take(const place &p, int k) const;
};

/* A chunk of x where that is s. */
template <int TO, int FROM> __device__ __forceinline__ chunk<TO> as_it_is(const chunk<FROM> &c) {
    if constexpr (TO == FROM)
        return c;
    else
        return zero_chunk<TO>();
}

/* s of a chunk; FIRST: sum and mask are written. */
template <bool FIRST>
__device__ __forceinline__ chunk<X_BYTES> make(const row_args &args, const place &p, const philox_key &key,
                                               const row_reader &r, const inputs &in, int k) {
    chunk<X_BYTES> s;
    u32 kept = EVERY_LANE;
    if (DROPOUT) {
        const u64 first = (u64)(r.number.inner * args.index_inner +
                                (TWO_LEVELS ? r.number.outer * args.index_outer : 0) + part_place<WIDTH>(p, k));
        kept = kept_elements<WIDTH, INDEX_ALIGNED>(key, first, args.dropped);
    }
    if constexpr (MADE) {
        real v[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            v[i] = in.x.get(i);
            if constexpr (GATE_FIRST)
                v[i] *= silu_of(in.gate.get(i));
            if constexpr (HAS_COLUMN_SCALE)
                v[i] *= in.column.get(i);
            if (HAS_ROW_SCALE)
                v[i] *= r.row_scale;
            if (DROPOUT)
                v[i] = kept >> i & 1 ? v[i] * (real)args.keep_factor : 0;
            if constexpr (HAS_RESIDUAL)
                v[i] += in.residual.get(i);
        }
        s = pack<X_TYPE, WIDTH>(v);
    } else {
        s = as_it_is<X_BYTES>(in.x.c);
    }
    if constexpr (FIRST && HAS_SUM)
        store_chunk<X_BYTES, ACCESSES[ROLE_SUM]>(address_of<ROLE_SUM>(args, r.number) + part_place<X_BYTES>(p, k), s);
    if constexpr (FIRST && HAS_MASK) {
        u32 byte[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            byte[i] = kept >> i & 1;
        store_bytes<ACCESSES[ROLE_MASK]>(address_of<ROLE_MASK>(args, r.number) + part_place<WIDTH>(p, k), byte);
    }
    return s;
}

/* s of a chunk once more. A thread sees what it wrote itself; where nothing was written, no input was. */
__device__ __forceinline__ chunk<X_BYTES> chunk_again(const row_reader &r, int k) {
    if constexpr (HAS_SUM) {
        return load_chunk<X_BYTES, ACCESSES[ROLE_SUM]>(address_of<ROLE_SUM>(*r.args, r.number) +
                                                       part_place<X_BYTES>(*r.where, k));
    } else {
        inputs in;
        in.load(*r.args, *r.where, r.number, k);
        return make<false>(*r.args, *r.where, *r.key, r, in, k);
    }
}

__device__ __forceinline__ taken::type row_reader::take(const place &p, int k) const {
    if constexpr (HOLD == HOLD_IN_REGISTERS)
        return held[k];
    else if constexpr (HOLD == HOLD_IN_SHARED)
        return taken::of(load_from_shared<X_BYTES>(slot + k * (THREADS * X_BYTES)));
    else
        return taken::of(there && p.has(k) ? chunk_again(*this, k) : zero_chunk<X_BYTES>());
}

__device__ __forceinline__ void begin_row(const row_args &args, const place &p, const philox_key &key,
                                          row_reader &r, i64 row, int u) {
    r.there = !p.idle && (STEP == 1 || row < args.rows); /* a team of one row had no turn without it */
    r.number = number_of(args, row);
    r.u = u;
    r.slot = p.slot(0, u, 0);
    r.args = &args;
    r.where = &p;
    r.key = &key;
    r.row_scale = 1;
    if constexpr (HAS_ROW_SCALE)
        if (r.there)
            r.row_scale = load_element<TYPES[ROLE_ROW_SCALE]>(address_of<ROLE_ROW_SCALE>(args, r.number), 0);
}

/* AT_ONCE chunks from `k` on of every row: all are asked for before any is written, for what is written may be
 * in the way of what is read. */
__device__ __forceinline__ void bring_chunks(const row_args &args, const place &p, const philox_key &key,
                                             row_reader *reader, int k) {
    inputs in[ROWS][AT_ONCE];
#pragma unroll
    for (int u = 0; u < ROWS; u++)
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            /* Else a chunk that is not there has the registers of the turn before, which cannot serve between. */
            if constexpr (TYPES[ROLE_Q] != NONE)
                in[u][j] = {};
            if (reader[u].there && k + j < CHUNKS_PER_THREAD && p.has(k + j)) {
                in[u][j].load(args, p, reader[u].number, k + j);
                if constexpr (IN_REGISTERS && GATE_LAST && !GATE_WAITS)
                    reader[u].gate[j].load(args, p, reader[u].number, k + j);
            }
        }
    copy_weights(args, p, reader[0].number);
    if constexpr (GATE_WAITS) {
#pragma unroll
        for (int u = 0; u < ROWS; u++)
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                copy_gate(args, p, reader[u].number, u, k + j, reader[u].there && p.has(k + j));
        copy_async_commit();
    }
#pragma unroll
    for (int u = 0; u < ROWS; u++)
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            auto s = zero_chunk<X_BYTES>();
            if constexpr (TYPES[ROLE_Q] != NONE && !MADE && !HAS_SUM && !HAS_MASK)
                s = as_it_is<X_BYTES>(in[u][j].x.c);
            else if (reader[u].there && k + j < CHUNKS_PER_THREAD && p.has(k + j))
                s = make<true>(args, p, key, reader[u], in[u][j], k + j);
            if constexpr (IN_REGISTERS)
                reader[u].held[j] = taken::of(s);
            else if (HOLD == HOLD_IN_SHARED && k + j < CHUNKS_PER_THREAD)
                store_to_shared<X_BYTES>(reader[u].slot + (k + j) * (THREADS * X_BYTES), s);
        }
}

/* Makes s of a team's rows. */
__device__ __forceinline__ void bring_rows(const row_args &args, const place &p, const philox_key &key,
                                           row_reader *reader) {
    if constexpr (IN_REGISTERS)
        bring_chunks(args, p, key, reader, 0);
    else if (HOLD == HOLD_IN_SHARED || HAS_SUM || HAS_MASK)
#pragma unroll 1
        for (int k = 0; k < CHUNKS_PER_THREAD; k += AT_ONCE)
            bring_chunks(args, p, key, reader, k);
}
