/*
 * What the vocabulary says in PTX, said in C++ over device.h. A function of the vocabulary that
 * holds PTX and is not here does not compile or load, so that none is forgotten. Accesses check
 * their alignment, as the hardware does.
 */
template <int A> static inline const char *aligned(const void *address) {
    if ((uintptr_t)address % A)
        emulation_fail("an access of %d bytes at the misaligned address %p", A, address);
    return (const char *)address;
}

/* ---- Global memory ---------------------------------------------------------------------------- */

template <int BYTES, int ACCESS> chunk<BYTES> load_chunk(const void *address) {
    constexpr int A = least(BYTES, ACCESS);
    chunk<BYTES> c = zero_chunk<BYTES>();
    emulation_pause();
    for (int i = 0; i < BYTES; i += A)
        memcpy((char *)c.word + i, aligned<A>((const char *)address + i), A);
    return c;
}

double load_f64_if(bool there, const void *address) {
    double value = 0;
    emulation_pause();
    if (there)
        memcpy(&value, aligned<8>(address), 8);
    return value;
}

template <int BYTES, int ACCESS> void store_chunk(void *address, const chunk<BYTES> &c) {
    constexpr int A = least(BYTES, ACCESS);
    emulation_pause();
    for (int i = 0; i < BYTES; i += A)
        memcpy((char *)aligned<A>((char *)address + i), (const char *)c.word + i, A);
}

/* ---- Conversions ------------------------------------------------------------------------------ */

static inline float widen_f16(u32 half) {
    u32 sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, digits = half & 1023;
    if (exponent == 31)
        return __uint_as_float(sign | 0x7f800000u | digits << 13);
    if (exponent)
        return __uint_as_float(sign | (exponent + 112) << 23 | digits << 13);
    float f = (float)digits * 0x1p-24f;
    return sign ? -f : f;
}

static inline u32 narrow_f16(float f) {
    u32 bits = __float_as_uint(f), sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u)
        return 0x7fff;
    if (bits >= 0x477ff000u)
        return sign | 0x7c00;
    if (bits < 0x38800000u) /* subnormal: the addition rounds at the right place */
        return sign | (__float_as_uint(__uint_as_float(bits) + 0.5f) - 0x3f000000u);
    return sign | ((bits + 0xc8000fffu + (bits >> 13 & 1)) >> 13);
}

static inline u32 narrow_bf16(float f) {
    u32 bits = __float_as_uint(f);
    return f != f ? 0x7fff : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

/* In 8 bits: the nearest multiple of the last place, saturated. */
static inline u32 narrow_to_byte(float f, int digits, int bias, float most) {
    if (f != f)
        return 0x7f;
    const float size = fminf(fabsf(f), most);
    int exponent = 0;
    frexpf(size, &exponent);
    exponent = size == 0 || exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    const u32 places = (u32)nearbyintf(ldexpf(size, digits - exponent));
    return (f < 0 || (f == 0 && 1 / f < 0) ? 0x80u : 0) |
           (((u32)(exponent + bias - 1) << digits) + places);
}

template <bool IS_E4M3> u32 narrow_four(float a, float b, float c, float d) {
    const int digits = IS_E4M3 ? 3 : 2, bias = IS_E4M3 ? 7 : 15;
    const float most = IS_E4M3 ? 448.f : 57344.f, v[4] = {a, b, c, d};
    u32 word = 0;
    for (int i = 0; i < 4; i++)
        word |= narrow_to_byte(v[i], digits, bias, most) << 8 * i;
    return word;
}

static inline u32 larger_half(u32 a, u32 b) {
    a &= 0x7fff, b &= 0x7fff;
    return a > 0x7c00 ? b : b > 0x7c00 ? a : a > b ? a : b;
}
u32 larger_halves(u32 a, u32 b) { return larger_half(a, b) | larger_half(a >> 16, b >> 16) << 16; }

template <int TYPE> real element(const u32 *word, int i) {
    if constexpr (TYPE == F32)
        return __uint_as_float(word[i]);
    else if constexpr (TYPE == F16)
        return widen_f16(word[i / 2] >> 16 * (i & 1) & 0xffffu);
    else if constexpr (TYPE == BF16)
        return __uint_as_float((word[i / 2] >> 16 * (i & 1) & 0xffffu) << 16);
    else
        return (real)__hiloint2double((int)word[2 * i + 1], (int)word[2 * i]);
}

template <int TYPE, int COUNT> chunk<COUNT * bytes_of(TYPE)> pack(const real *v) {
    chunk<COUNT * bytes_of(TYPE)> c = zero_chunk<COUNT * bytes_of(TYPE)>();
    for (int i = 0; i < COUNT; i++) {
        if constexpr (TYPE == F32) {
            c.word[i] = __float_as_uint((float)v[i]);
        } else if constexpr (TYPE == F64) {
            u64 bits = (u64)__double_as_longlong((double)v[i]);
            c.word[2 * i] = (u32)bits;
            c.word[2 * i + 1] = (u32)(bits >> 32);
        } else {
            float f = before_halving(v[i]);
            c.word[i / 2] |= (TYPE == F16 ? narrow_f16(f) : narrow_bf16(f)) << 16 * (i & 1);
        }
    }
    return c;
}

/* The hardware's estimate, off in its last bit. */
float estimate_root(float f) {
    return __uint_as_float(__float_as_uint((float)(1 / sqrt((double)f))) ^ 1);
}

/* The same, in its last two. */
float estimate_power(float f) {
    const float exact = (float)exp2((double)f);
    return exact == 0 || isinf(exact) ? exact : __uint_as_float(__float_as_uint(exact) ^ 3);
}
float estimate_inverse(float f) {
    return isinf(f) ? 0 : __uint_as_float(__float_as_uint((float)(1 / (double)f)) ^ 1);
}

void keep(float &) {}

u32 meets_nan(u32 before, float a, float b, float c, float d) {
    return before != 0 || a != a || b != b || c != c || d != d;
}

/* The upper half of its bits. */
double estimate_inverse(double v) {
    return __hiloint2double((int)((u64)__double_as_longlong(1 / v) >> 32), 0);
}

u32 largest_of_warp(u32 v) {
    for (int step = 16; step; step /= 2) {
        const u32 other = __shfl_xor_sync(0xffffffffu, v, step);
        v = other > v ? other : v;
    }
    return v;
}

/* ---- Shared memory, copies and barriers ------------------------------------------------------- */

void barrier(int id, int threads) { emulation_barrier(id, (unsigned)threads); }

template <int BYTES, int ACCESS> void copy_async(u32 to, const void *from, bool there) {
    constexpr int A = least(BYTES, ACCESS);
    static_assert(A >= 4, "asynchronous copies move at least 4 bytes");
    for (u32 i = 0; i < BYTES; i += A) {
        const char *source = (const char *)((uintptr_t)from + i);
        emulation_copy_async(emulation_at(to + i, A), there ? aligned<A>(source) : source, A, there);
    }
}
void prefetch_line(const char *) {} /* takes any address */
void copy_async_commit() { emulation_copy_commit(); }
template <int PENDING> void copy_async_wait() { emulation_copy_wait(PENDING); }

template <int BYTES> chunk<BYTES> load_from_shared(u32 address) {
    constexpr int A = least(BYTES, 16);
    chunk<BYTES> c = zero_chunk<BYTES>();
    for (u32 i = 0; i < BYTES; i += A)
        memcpy((char *)c.word + i, emulation_at(address + i, A), A);
    return c;
}

template <int BYTES> void store_to_shared(u32 address, const chunk<BYTES> &c) {
    constexpr int A = least(BYTES, 4);
    for (u32 i = 0; i < BYTES; i += A)
        memcpy(emulation_at(address + i, A), (const char *)c.word + i, A);
}

void raise_to(u32 *address, u32 v) {
    emulation_pause();
    *address = *address > v ? *address : v;
}
u32 latest_word(const u32 *address) {
    emulation_pause();
    return *address;
}

/* ---- Blocks that run at the same time --------------------------------------------------------- */

u32 *grid_barrier_word() {
    static u32 word;
    if (!emulation_is_resident())
        emulation_fail("a barrier of the whole grid");
    return &word;
}
u32 add_and_release(u32 *address, u32 v) {
    emulation_pause();
    return (*address += v) - v;
}
u32 load_and_acquire(const u32 *address) {
    emulation_yield();
    return *address;
}
void post_word(u64 *address, u64 v) {
    emulation_pause();
    aligned<8>(address);
    *address = v;
}
void look_at_words(const u64 *address, u64 &a, u64 &b) {
    emulation_yield();
    aligned<16>(address);
    a = address[0];
    b = address[1];
}

/* ---- Clusters and the stream ------------------------------------------------------------------ */

u32 cluster_rank() { return emulation_cluster_rank(); }
void cluster_arrive() { emulation_cluster_arrive(); }
void cluster_wait() { emulation_cluster_wait(); }
u32 in_block(u32 address, u32 rank) { return emulation_address_in(address, rank); }
void byte_barrier_init(u32 barrier) { emulation_bytes_init(barrier); }
void byte_barrier_expect(u32 barrier, u32 bytes) { emulation_bytes_expect(barrier, bytes); }
void byte_barrier_wait(u32 barrier, u32 parity) { emulation_bytes_wait(barrier, parity); }
void send_to_block(u32 address, u32 barrier, u32 rank, const float *v) {
    emulation_send(in_block(address, rank), in_block(barrier, rank), v, 16);
}
void send_to_block(u32 address, u32 barrier, u32 rank, const double *v) {
    emulation_send(in_block(address, rank), in_block(barrier, rank), v, 16);
    emulation_send(in_block(address, rank) + 16, in_block(barrier, rank), v + 2, 16);
}
void send_two_to_block(u32 address, u32 barrier, u32 rank, const float *v) {
    emulation_send(in_block(address, rank), in_block(barrier, rank), v, 8);
}
void send_two_to_block(u32 address, u32 barrier, u32 rank, const double *v) {
    emulation_send(in_block(address, rank), in_block(barrier, rank), v, 16);
}
/* In pieces that arrive in any order. */
void copy_piece_in(u32 to, const void *from, int bytes, u32 barrier) {
    if (bytes % 16)
        emulation_fail("a copy of %d bytes: wanted a multiple of 16", bytes);
    for (int i = 0; i < bytes; i += 16)
        emulation_send(to + (u32)i, barrier, aligned<16>((const char *)from + i), 16);
}
void copy_piece_out(void *to, u32 from, int bytes) {
    for (int i = 0; i < bytes; i += 16)
        memcpy((char *)aligned<16>((char *)to + i), emulation_at(from + (u32)i, 16), 16);
    emulation_pause();
}
void wait_for_copies_out() {}
void publish_to_copies() {}
/* Launches follow one another here. */
void wait_for_stream() {}
void release_stream() {}
