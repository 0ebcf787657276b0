/*
 * Packs of GPU kernels and the cache they are made from: what is found, and what becomes of files
 * that are damaged, cut, foreign or of another version. Needs neither a GPU nor a compiler.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "cuda/ahead.h"
#include "cuda/cache.h"
#include "cuda/jit.h"
#include "cuda/pack.h"
#include "packs.h"

enum { KERNELS = 5 };

static bool same_code(int number, const void *code, size_t bytes) {
    size_t wanted_bytes;
    unsigned char *wanted = packs_code(number, &wanted_bytes);
    bool same = wanted && code && bytes == wanted_bytes && !memcmp(code, wanted, bytes);
    free(wanted);
    return same;
}

static bool finds(int number) {
    char key[CUDA_KEY_BYTES];
    size_t bytes = 0;
    packs_key(number, key);
    void *code = pack_find(key, &bytes);
    bool same = same_code(number, code, bytes);
    free(code);
    return same;
}

/* How many kernels the pack loaded last has; -1 if one of them is not what it was made from. */
static long sound_kernels(void) {
    const pack *p = pack_list();
    for (size_t i = 0; p && i < p->kernels; i++) {
        bool right = false;
        for (int number = 0; !right && number < KERNELS; number++) {
            char key[CUDA_KEY_BYTES];
            packs_key(number, key);
            right = cache_entry_is(&p->entries[i], key) &&
                    same_code(number, p->entries[i].code, p->entries[i].code_bytes);
        }
        if (!right)
            return -1;
    }
    return p ? (long)p->kernels : 0;
}

/* First of all: PLANISH_PACK is read at the first look. */
static void the_named_pack_is_not_found(void) {
    char path[256];
    snprintf(path, sizeof path, "%s", packs_path("named.pack"));
    test_case("what PLANISH_PACK names is not found, or not what was packed");
    expect(packs_make(path, KERNELS), "no pack could be made");
    setenv("PLANISH_PACK", path, 1);
    for (int i = 0; i < KERNELS; i++)
        expect(finds(i), "kernel %d", i);
    expect(!pack_problem(), "%s", pack_problem());
    expect(sound_kernels() == KERNELS && !pack_list()->left_out, "%ld kernels, %zu left out",
           sound_kernels(), pack_list()->left_out);
    expect(!finds(KERNELS), "a kernel that nobody packed was found");

    test_case("a kernel for another architecture is taken from a pack");
    cuda_spec spec = {.kernel = 0};
    char key[CUDA_KEY_BYTES];
    size_t bytes = 0;
    spec.weight_offset = 100;
    expect(cuda_key(&spec, "sm_80", key, sizeof key), "no key");
    expect(!pack_find(key, &bytes), "found");

    test_case("a run does not take its code from a pack");
    void *code = NULL;
    char words[512] = "";
    planish_status status = jit_code(&spec, 90, &code, &bytes, (message){words, sizeof words});
    expect(status == PLANISH_OK, "%s", words);
    expect(same_code(0, code, bytes), "other code");
    expect(!words[0], "a message on success: %s", words);
    free(code);

    test_case("a pack that is overwritten after it was loaded is lost");
    expect(packs_write(path, "", 0), "not written");
    for (int i = 0; i < KERNELS; i++)
        expect(finds(i), "kernel %d", i);
}

static void the_cache_mixes_compilers(void) {
    char key[CUDA_KEY_BYTES];
    packs_key(7, key);
    test_case("the cache mixes compilers");
    packs_path("");
    expect(cache_write(key, "9.1", "nine", 4) && cache_write(key, "13.0", "thirteen", 8), "kept");
    static const struct {
        const char *compiler, *code;
    } wanted[] = {{"9.1", "nine"}, {"13.0", "thirteen"}, {NULL, "thirteen"}, {"12.4", NULL}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        size_t bytes = 0;
        char *code = cache_read(key, wanted[i].compiler, &bytes);
        expect(wanted[i].code
                   ? code && bytes == strlen(wanted[i].code) && !memcmp(code, wanted[i].code, bytes)
                   : !code,
               "compiler %s: %.*s", wanted[i].compiler ? wanted[i].compiler : "any", (int)bytes,
               code ? code : "");
        free(code);
    }
    size_t bytes = 0;
    key[strlen(key) - 3]++;
    expect(!cache_read(key, NULL, &bytes), "another key's code");

    test_case("a damaged entry of the newest compiler hides that of another");
    char sound[CUDA_KEY_BYTES];
    packs_key(7, sound);
    expect(packs_gather(packs_path("cache.pack")), "not gathered"); /* empties the folder */
    expect(cache_write(sound, "9.1", "nine", 4), "kept");
    char damaged[256], folder[200];
    expect(cache_folder(folder, sizeof folder), "no folder");
    snprintf(damaged, sizeof damaged, "%s/%016llx%016llx-13.0.kernel", folder,
             (unsigned long long)cache_hash(sound, strlen(sound), 0),
             (unsigned long long)cache_hash(sound, strlen(sound), 0x9e3779b97f4a7c15u));
    expect(packs_write(damaged, "planish1 and then nothing", 25), "not written");
    char *code = cache_read(sound, NULL, &bytes);
    expect(code && bytes == 4 && !memcmp(code, "nine", 4), "found %s", code ? code : "none");
    free(code);
    expect(packs_write(damaged, "", 0), "not written");
    expect(!cache_read(sound, "13.0", &bytes), "an empty file was taken for an entry");
    expect(packs_gather(packs_path("cache.pack")), "not gathered");
}

static void refused(const char *path, planish_status wanted, const char *words) {
    char message[512] = "";
    const pack *before = pack_list();
    planish_status status = planish_pack_load(path, message, sizeof message);
    expect(status == wanted, "%s: %s", planish_status_name(status), message);
    expect(strstr(message, words) != NULL, "the message lacks \"%s\": %s", words, message);
    expect(pack_list() == before, "it was loaded");
    expect(planish_pack_load(path, NULL, 0) == wanted, "without room for a message");
}

static void a_foreign_file_is_taken_for_a_pack(void) {
    test_case("no path");
    refused(NULL, PLANISH_ERROR_NULL_POINTER, "path is NULL");
    test_case("a file that is not there");
    refused(packs_path("nothing"), PLANISH_ERROR_FILE, "No such file");
    test_case("a folder");
    refused("/tmp", PLANISH_ERROR_FILE, "Is a directory");
    test_case("a device without an end");
    refused("/dev/zero", PLANISH_ERROR_FILE, "cannot be read");
    test_case("files that are no packs");
    static const char *const texts[] = {"", "planpac", "planish1planpack", "PK\3\4 planpack"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        expect(packs_write(packs_path("foreign"), texts[i], strlen(texts[i])), "not written");
        refused(packs_path("foreign"), PLANISH_ERROR_FILE, "is no pack");
    }
    test_case("a pack without a kernel");
    expect(packs_write(packs_path("foreign"), PACK_MAGIC, 8), "not written");
    refused(packs_path("foreign"), PLANISH_ERROR_FILE, "found no kernel");
}

/* A pack of kernel 0 with its key changed: `from` gives way to `to`. */
static bool changed_pack(const char *path, const char *from, const char *to) {
    char key[CUDA_KEY_BYTES], changed[CUDA_KEY_BYTES + 64];
    packs_key(0, key);
    const char *at = strstr(key, from);
    if (!at)
        return false;
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - key), key, to, at + strlen(from));
    return packs_entry(changed, "13.0", "code", 4) && packs_gather(path);
}

static void another_versions_kernels_are_taken(void) {
    static const struct {
        const char *what, *from, *to;
    } changes[] = {
        {"another vocabulary", "vocabulary ", "vocabulary 0"},
        {"another kernel text", " kernel ", " kernel 0"},
        {"a kernel that there is not", "planish_", "polish_"},
        {"PTX", "=sm_90", "=compute_90"},
        {"another option", "--fmad=false", "--fmad=true"},
        {"one constant more", "constexpr int KIND", "constexpr int MORE = 1;\nconstexpr int KIND"},
        {"one constant less", "constexpr int KIND = 0;\n", ""},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        char name[32];
        snprintf(name, sizeof name, "changed-%zu.pack", i);
        test_case("a pack of other kernels is taken: %s", changes[i].what);
        expect(changed_pack(packs_path(name), changes[i].from, changes[i].to), "no pack made");
        refused(packs_path(name), PLANISH_ERROR_FILE, "another version of planish");
        size_t bytes;
        char *pack_file = packs_read(packs_path(name), &bytes);
        expect(pack_file && !planish_pack_takes(pack_file + 8, bytes - 8), "it would be packed");
        free(pack_file);
    }
    test_case("one kernel of another version keeps the others out");
    char path[256];
    snprintf(path, sizeof path, "%s", packs_path("mixed.pack"));
    expect(changed_pack(path, "vocabulary ", "vocabulary 0"), "no pack made");
    expect(packs_make(path, KERNELS), "no pack made");
    char message[256] = "";
    expect(!planish_pack_load(path, message, sizeof message), "%s", message);
    expect(sound_kernels() == KERNELS && pack_list()->left_out == 1, "%ld kernels, %zu left out",
           sound_kernels(), pack_list()->left_out);
}

static void a_damaged_pack_gives_wrong_code(void) {
    char whole[256], broken[256];
    snprintf(whole, sizeof whole, "%s", packs_path("whole.pack"));
    snprintf(broken, sizeof broken, "%s", packs_path("broken.pack"));
    size_t bytes;
    expect(packs_make(whole, KERNELS), "no pack made");
    char *data = packs_read(whole, &bytes);
    test_case("a byte of a pack that is not what it was");
    for (size_t at = 0; data && at < bytes; at += 13) {
        data[at] ^= 0x41;
        expect(packs_write(broken, data, bytes), "not written");
        data[at] ^= 0x41;
        planish_status status = planish_pack_load(broken, NULL, 0);
        expect(status == (at < 8 ? PLANISH_ERROR_FILE : PLANISH_OK), "byte %zu: %s", at,
               planish_status_name(status));
        if (!status)
            expect(sound_kernels() == KERNELS - 1 && pack_list()->left_out <= 1,
                   "byte %zu: %ld kernels", at, sound_kernels());
    }
    test_case("a pack that ends early");
    long before = 0;
    for (size_t length = 0; data && length < bytes; length += 19) {
        expect(packs_write(broken, data, length), "not written");
        planish_status status = planish_pack_load(broken, NULL, 0);
        if (status) {
            expect(status == PLANISH_ERROR_FILE && before == 0, "%zu bytes: %s", length,
                   planish_status_name(status));
            continue;
        }
        long now = sound_kernels();
        expect(now >= before && now < KERNELS, "%zu bytes: %ld kernels", length, now);
        before = now;
    }
    expect(before == KERNELS - 1, "%ld kernels before the last byte", before);
    free(data);
}

static void *load_and_find(void *path) {
    for (int turn = 0; turn < 50; turn++) {
        if (planish_pack_load(path, NULL, 0))
            return path;
        for (int i = 0; i < KERNELS + 2; i++)
            if (!finds(i))
                return path;
    }
    return NULL;
}

static void threads_disturb_each_other(void) {
    enum { THREADS = 4 };
    char path[256];
    pthread_t threads[THREADS];
    snprintf(path, sizeof path, "%s", packs_path("threads.pack"));
    test_case("threads that load and look at the same time, and the same pack twice");
    expect(packs_make(path, KERNELS + 2), "no pack made");
    const pack *before = pack_list();
    for (int t = 0; t < THREADS; t++)
        expect(!pthread_create(&threads[t], NULL, load_and_find, path), "no thread");
    for (int t = 0; t < THREADS; t++) {
        void *failed = path;
        pthread_join(threads[t], &failed);
        expect(!failed, "thread %d", t);
    }
    expect(pack_list()->next == before, "the same pack was loaded more than once");
}

/* What the command asks for: a GPU that cannot be, and tensors that make no sense. */
static void preparing_checks_nothing(void) {
    int64_t shape[] = {4, 64};
    DLTensor x = {.device = {kDLCUDA, 0}, .ndim = 2, .dtype = {kDLFloat, 32, 1}, .shape = shape};
    const planish_tensors tensors = {.struct_size = sizeof tensors, .x = &x, .y = &x};
    planish_norm op = planish_layer_norm_op(2, 1, 1e-5);
    planish_gpu gpu = {90, 132, 232448, 16, 1};
    char message[512] = "";
    test_case("preparing checks nothing");
    expect(planish_pack_prepare(NULL, &op, PLANISH_FORWARD, &tensors, message, sizeof message) ==
               PLANISH_ERROR_NULL_POINTER,
           "%s", message);
    gpu.arch = 75;
    expect(planish_pack_prepare(&gpu, &op, PLANISH_FORWARD, &tensors, message, sizeof message) ==
               PLANISH_ERROR_ARGUMENT,
           "%s", message);
    expect(strstr(message, "7.5") && strstr(message, "8.0"), "%s", message);
    gpu.arch = 90;
    op.reduce_axes = 0;
    expect(planish_pack_prepare(&gpu, &op, PLANISH_FORWARD, &tensors, message, sizeof message) ==
               PLANISH_ERROR_AXES,
           "%s", message);
    expect(!planish_pack_takes(NULL, 0) && !planish_pack_takes("planish1", 8), "taken");
}

int main(void) {
    the_named_pack_is_not_found();
    the_cache_mixes_compilers();
    a_foreign_file_is_taken_for_a_pack();
    another_versions_kernels_are_taken();
    a_damaged_pack_gives_wrong_code();
    threads_disturb_each_other();
    preparing_checks_nothing();
    return test_finish("pack");
}
