/*
 * What the CPU is taken for: the microarchitecture of vendors and families, this machine's, and the
 * one that PLANISH_CPU names in its place (--wanted=NAME: it does).
 */
#include <string.h>

#include "check.h"

#include "cpu/plan.h"

static void families(void) {
    static const struct {
        cpu_vendor vendor;
        unsigned family;
        bool has_avx512;
        cpu_microarchitecture wanted;
    } table[] = {
        {VENDOR_INTEL, 0x6, false, CPU_INTEL},
        {VENDOR_INTEL, 0x6, true, CPU_INTEL_AVX512},
        {VENDOR_INTEL, 0x13, true, CPU_INTEL_AVX512},
        {VENDOR_AMD, 0x17, false, CPU_GENERIC},
        {VENDOR_AMD, 0x19, false, CPU_ZEN3},
        {VENDOR_AMD, 0x19, true, CPU_ZEN4},
        {VENDOR_AMD, 0x1a, true, CPU_ZEN5},
        {VENDOR_AMD, 0x1b, true, CPU_ZEN5},
        {VENDOR_AMD, 0x1a, false, CPU_GENERIC},
        {VENDOR_ARM, 0, false, CPU_NEOVERSE},
        {VENDOR_OTHER, 0x7, true, CPU_GENERIC_AVX512},
        {VENDOR_OTHER, 0x7, false, CPU_GENERIC},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const cpu_identity id = {.vendor = table[i].vendor,
                                 .family = table[i].family,
                                 .has_avx512 = table[i].has_avx512};
        const cpu_microarchitecture found = cpu_microarchitecture_of(&id);
        test_case("vendor %d, family 0x%x, AVX-512 %d", id.vendor, id.family, id.has_avx512);
        expect(found == table[i].wanted, "it is taken for %s; wanted %s",
               cpu_tuning_of(found)->name, cpu_tuning_of(table[i].wanted)->name);
    }
}

static void rows(void) {
    test_case("every microarchitecture has a row, each with a name of its own");
    for (cpu_microarchitecture m = CPU_GENERIC; m < CPU_COUNT; m++) {
        const cpu_tuning *row = cpu_tuning_of(m);
        if (!expect(row->name != NULL && row->fork_elements > 0 && row->stream_rows_share > 0 &&
                        row->turn_row_bytes > 0 && row->stream_run_bytes[0] > 0,
                    "row %d is not filled in", m))
            return;
        for (cpu_microarchitecture other = CPU_GENERIC; other < m; other++)
            expect(strcmp(row->name, cpu_tuning_of(other)->name) != 0, "two rows are %s",
                   row->name);
    }
}

static void this_one(const char *wanted) {
    test_case("this CPU is identified%s%s", wanted ? ", by PLANISH_CPU as " : "",
              wanted ? wanted : "");
    const cpu_identity id = cpu_identify(), again = cpu_identify();
    const cpu_limits limits = cpu_limits_here();
    expect(id.microarchitecture == again.microarchitecture && id.vendor == again.vendor &&
               id.family == again.family && id.model == again.model &&
               id.has_avx512 == again.has_avx512 && id.first_cache == again.first_cache &&
               id.shared_cache == again.shared_cache,
           "it is another one the second time");
    expect(limits.tuning == cpu_tuning_of(id.microarchitecture), "plans are told of %s",
           limits.tuning->name);
    if (wanted)
        expect(!strcmp(limits.tuning->name, wanted), "plans are told of %s", limits.tuning->name);
    else
        expect(id.microarchitecture == cpu_microarchitecture_of(&id), "it is taken for %s",
               limits.tuning->name);
#if defined(__x86_64__)
    expect(id.family != 0, "no family");
    if (__builtin_cpu_is("intel"))
        expect(id.vendor == VENDOR_INTEL, "vendor %d", id.vendor);
#endif
}

int main(int argc, char **argv) {
    families();
    rows();
    this_one(argument(argc, argv, "wanted", NULL));
    return test_finish("identify");
}
