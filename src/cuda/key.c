#include "cuda/key.h"

#include <stdio.h>
#include <string.h>

#include "cuda/cache.h"
#include "cuda/families.h"

const char *const cuda_options[CUDA_OPTIONS] = {
    "--std=c++17", "--fmad=false" /* the kernels say where they contract */
};

static unsigned long long text_hash(const char *text) {
    return cache_hash(text, strlen(text), 0);
}

bool cuda_key(const cuda_spec *spec, const char *target, char *key, size_t bytes) {
    const cuda_kernel_row *kernel = cuda_kernel_of(spec);
    int n =
        snprintf(key, bytes, "%s vocabulary %016llx kernel %016llx --gpu-architecture=%s",
                 kernel->entry, text_hash(cuda_text_vocabulary), text_hash(kernel->text), target);
    for (int i = 0; i < CUDA_OPTIONS && n > 0 && (size_t)n < bytes; i++)
        n += snprintf(key + n, bytes - (size_t)n, " %s", cuda_options[i]);
    if (n <= 0 || (size_t)n + 1 >= bytes)
        return false;
    key[n++] = '\n';
    return (size_t)n + cuda_spec_prelude(spec, key + n, bytes - (size_t)n) < bytes;
}

static bool of_a_number(char c) {
    return (c >= '0' && c <= '9') || c == '-';
}

/* Whether two texts differ in nothing but numbers. */
static bool same_form(const char *a, size_t a_bytes, const char *b, size_t b_bytes) {
    const char *a_end = a + a_bytes, *b_end = b + b_bytes;
    for (;;) {
        while (a < a_end && of_a_number(*a))
            a++;
        while (b < b_end && of_a_number(*b))
            b++;
        if (a == a_end || b == b_end)
            return a == a_end && b == b_end;
        if (*a++ != *b++)
            return false;
    }
}

bool cuda_key_is_ours(const char *key, size_t bytes) {
    char ours[CUDA_KEY_BYTES];
    for (int k = 0; k < CUDA_KERNEL_COUNT; k++) {
        const cuda_spec spec = {.kernel = k};
        if (!cuda_key(&spec, "sm_", ours, sizeof ours))
            continue;
        const char *exact_end = strstr(ours, "sm_");
        const size_t exact = (size_t)(exact_end - ours) + strlen("sm_");
        if (bytes >= exact && !memcmp(key, ours, exact))
            return same_form(key + exact, bytes - exact, ours + exact, strlen(ours) - exact);
    }
    return false;
}
