/* A part of vocabulary.cu: clusters and byte barriers (sm_90 and newer), and dependent launch. */

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ u32 cluster_rank() {
    u32 r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
/* The blocks of a cluster meet. Nothing is ordered but their threads: all that they hand to each other
 * is counted by byte barriers, and a fence would wait for every store to memory. */
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/* The address of this block's shared address in block `rank` of the cluster. */
__device__ __forceinline__ u32 in_block(u32 address, u32 rank) {
    u32 r;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(rank));
    return r;
}
/* Barriers in shared memory that count the bytes stored into a block of the cluster. */
__device__ __forceinline__ void byte_barrier_init(u32 barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/* Once per round and block: this many bytes will come. */
__device__ __forceinline__ void byte_barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
/* Waits for the end of the round of this parity. Of the block's scope: what was stored lies in its own
 * shared memory, and to acquire of the cluster would empty the multiprocessor's L1 each time. */
__device__ __forceinline__ void byte_barrier_wait(u32 barrier, u32 parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again%=:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again%=;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
/* Stores four values in block `rank`, and tells the barrier there. */
__device__ __forceinline__ void send_to_block(u32 address, u32 barrier, u32 rank, const float *v) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, "
                 "%4}, [%5];" ::"r"(in_block(address, rank)),
                 "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(in_block(barrier, rank))
                 : "memory");
}
__device__ __forceinline__ void send_to_block(u32 address, u32 barrier, u32 rank, const double *v) {
    u32 to = in_block(address, rank), at = in_block(barrier, rank);
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f64 [%0], {%1, %2}, "
                 "[%3];" ::"r"(to),
                 "d"(v[0]), "d"(v[1]), "r"(at)
                 : "memory");
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f64 [%0], {%1, %2}, "
                 "[%3];" ::"r"(to + 16),
                 "d"(v[2]), "d"(v[3]), "r"(at)
                 : "memory");
}
/* The same of two values. */
__device__ __forceinline__ void send_two_to_block(u32 address, u32 barrier, u32 rank, const float *v) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, "
                 "[%3];" ::"r"(in_block(address, rank)),
                 "f"(v[0]), "f"(v[1]), "r"(in_block(barrier, rank))
                 : "memory");
}
__device__ __forceinline__ void send_two_to_block(u32 address, u32 barrier, u32 rank, const double *v) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f64 [%0], {%1, %2}, "
                 "[%3];" ::"r"(in_block(address, rank)),
                 "d"(v[0]), "d"(v[1]), "r"(in_block(barrier, rank))
                 : "memory");
}
/* Copies BYTES, a multiple of 16 at addresses of 16, to shared memory and tells a byte barrier there; one
 * thread calls. */
__device__ __forceinline__ void copy_piece_in(u32 to, const void *from, int bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
                 "[%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
/* The same to memory. What other threads wrote to it comes before a barrier, and before that their
 * publish_to_copies(). */
__device__ __forceinline__ void copy_piece_out(void *to, u32 from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;" ::"l"(to),
                 "r"(from), "r"(bytes)
                 : "memory");
}
/* Waits until what this thread copies out has been read. */
__device__ __forceinline__ void wait_for_copies_out() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void publish_to_copies() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* Waits until the kernels before this one on its stream are done and their writes are seen. */
__device__ __forceinline__ void wait_for_stream() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
/* Lets the next kernel of the stream start, as far as it does not wait_for_stream(), once every block
 * has called this: early, so that its launch hides behind the present kernel. It waits for all of it. */
__device__ __forceinline__ void release_stream() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
#else
__device__ __forceinline__ u32 cluster_rank() { return 0; }
__device__ __forceinline__ void cluster_arrive() {}
__device__ __forceinline__ void cluster_wait() {}
__device__ __forceinline__ void byte_barrier_init(u32) {}
__device__ __forceinline__ void byte_barrier_expect(u32, u32) {}
__device__ __forceinline__ void byte_barrier_wait(u32, u32) {}
__device__ __forceinline__ void send_to_block(u32, u32, u32, const float *) {}
__device__ __forceinline__ void send_to_block(u32, u32, u32, const double *) {}
__device__ __forceinline__ void send_two_to_block(u32, u32, u32, const float *) {}
__device__ __forceinline__ void send_two_to_block(u32, u32, u32, const double *) {}
__device__ __forceinline__ void copy_piece_in(u32, const void *, int, u32) {}
__device__ __forceinline__ void copy_piece_out(void *, u32, int) {}
__device__ __forceinline__ void wait_for_copies_out() {}
__device__ __forceinline__ void publish_to_copies() {}
__device__ __forceinline__ void wait_for_stream() {}
__device__ __forceinline__ void release_stream() {}
#endif
