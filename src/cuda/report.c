/*
 * What there is for GPUs on this machine, as JSON, for people: planish_gpu_report. Nothing else
 * reads it.
 */
#include "cuda/backend.h"
#include "cuda/cache.h"
#include "cuda/driver.h"
#include "cuda/pack.h"
#include "text.h"

/* Quoted, with what JSON wants escaped. */
static void append_string(text *to, const char *string) {
    append(to, "\"");
    for (const char *c = string; *c; c++) {
        if ((unsigned char)*c < 0x20)
            append(to, "\\u%04x", (unsigned)*c);
        else
            append(to, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
    }
    append(to, "\"");
}

static void append_problem(text *to, const char *problem) {
    append(to, ", \"problem\": ");
    append_string(to, problem);
}

static void append_device(text *to, const cuda_driver *d, int index) {
    char name[256] = "", problem[512];
    CUdevice handle;
    cuda_limits limits;
    if (!d->device_get(&handle, index))
        d->device_name(name, sizeof name, handle);
    append(to, "%s{\"name\": ", index ? ", " : "");
    append_string(to, name);
    if (cuda_device_limits(index, &limits, (message){problem, sizeof problem}))
        append_problem(to, problem);
    else
        append(to, ", \"capability\": \"%d.%d\", \"multiprocessors\": %d", limits.arch / 10,
               limits.arch % 10, limits.multiprocessors);
    append(to, "}");
}

static void append_driver(text *to) {
    const cuda_driver *d;
    char problem[512];
    int version = 0, count = 0;
    append(to, "\"driver\": {");
    if (cuda_driver_get(&d, (message){problem, sizeof problem})) {
        append(to, "\"version\": null");
        append_problem(to, problem);
        append(to, "}, \"devices\": [");
    } else {
        d->driver_version(&version);
        d->device_count(&count);
        append(to, "\"version\": \"%d.%d\"}, \"devices\": [", version / 1000, version % 1000 / 10);
    }
    for (int i = 0; i < count; i++)
        append_device(to, d, i);
    append(to, "]");
}

static void append_compiler(text *to) {
    const cuda_compiler *c;
    char problem[512];
    append(to, "\"nvrtc\": {");
    if (cuda_compiler_get(&c, (message){problem, sizeof problem})) {
        append(to, "\"version\": null");
        append_problem(to, problem);
    } else {
        append(to, "\"version\": \"%d.%d\"", c->major, c->minor);
    }
    append(to, "}");
}

static void append_packs(text *to) {
    append(to, "\"packs\": {\"loaded\": [");
    for (const pack *p = pack_list(); p; p = p->next) {
        append(to, "{\"path\": ");
        append_string(to, p->path);
        append(to, ", \"kernels\": %zu, \"left_out\": %zu}%s", p->kernels, p->left_out,
               p->next ? ", " : "");
    }
    append(to, "]");
    if (pack_problem())
        append_problem(to, pack_problem());
    append(to, "}");
}

int planish_gpu_report(char *start, size_t bytes) {
    text out = {start, start ? bytes : 0, 0};
    char folder[4096];
    append(&out, "{");
    append_driver(&out);
    append(&out, ", ");
    append_compiler(&out);
    append(&out, ", ");
    append_packs(&out);
    append(&out, ", \"cache\": ");
    if (planish_cache_path(folder, sizeof folder) < (int)sizeof folder && *folder)
        append_string(&out, folder);
    else
        append(&out, "null");
    append(&out, "}");
    return (int)out.length;
}

int planish_cache_path(char *path, size_t bytes) {
    char folder[4096];
    bool usable = cache_folder(folder, sizeof folder);
    return snprintf(path, bytes, "%s", usable ? folder : "");
}
