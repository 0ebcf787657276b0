/*
 * Drives a fuzz target with seeded random bytes, where there is no libFuzzer, the same ones on
 * every run: fuzz_main [inputs] [seed]. Prints how many inputs it took.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv) {
    long inputs = argc > 1 ? atol(argv[1]) : 200000;
    uint64_t state = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
    for (long n = 0; n < inputs; n++) {
        uint8_t input[256];
        size_t size = 0;
        for (; size < sizeof input; size++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            input[size] = (uint8_t)(state >> 56);
        }
        LLVMFuzzerTestOneInput(input, size);
    }
    printf("fuzz_descriptors: %ld inputs passed, 0 failed\n", inputs);
    return 0;
}
