/*
 * For wheels (-Dmanylinux=true): what newer versions of glibc moved from one library to another or
 * gave a new version, by the version that it had before, so that a library which was linked on a
 * newer Linux also loads with glibc 2.28. These definitions are of this library alone. Not for
 * another libc; auditwheel tells of a symbol that is missing here.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <sys/stat.h>

#if !defined(__GLIBC__)
#error "-Dmanylinux=true is for glibc"
#elif defined(__x86_64__)
#define FIRST "GLIBC_2.2.5" /* the first glibc of this architecture */
enum { STAT_VERSION = 1 };
#elif defined(__aarch64__)
#define FIRST "GLIBC_2.17"
enum { STAT_VERSION = 0 };
#else
#error "-Dmanylinux=true is for x86-64 and aarch64"
#endif

/* first_NAME is NAME as the first glibc had it. */
#define FIRST_OF(name) __asm__(".symver first_" #name ", " #name "@" FIRST)

/* libdl's until 2.34. */
FIRST_OF(dlopen);
void *first_dlopen(const char *path, int flags);
void *dlopen(const char *path, int flags) {
    return first_dlopen(path, flags);
}

FIRST_OF(dlsym);
void *first_dlsym(void *restrict library, const char *restrict name);
void *dlsym(void *restrict library, const char *restrict name) {
    return first_dlsym(library, name);
}

FIRST_OF(dladdr);
int first_dladdr(const void *address, Dl_info *info);
int dladdr(const void *address, Dl_info *info) {
    return first_dladdr(address, info);
}

/* libpthread's until 2.34. */
FIRST_OF(pthread_once);
int first_pthread_once(pthread_once_t *once, void (*function)(void));
int pthread_once(pthread_once_t *once, void (*function)(void)) {
    return first_pthread_once(once, function);
}

/* Without the error handling of before 2.29 since; the result is the same. */
FIRST_OF(exp);
double first_exp(double x);
double exp(double x) {
    return first_exp(x);
}

/* Inline functions over these until 2.33. Files are looked at by 64-bit offsets, which meson asks
 * for and which on these architectures is the same. */
int __fxstat64(int version, int file, struct stat64 *found);
int __lxstat64(int version, const char *path, struct stat64 *found);
int fstat64(int file, struct stat64 *found) {
    return __fxstat64(STAT_VERSION, file, found);
}
int lstat64(const char *restrict path, struct stat64 *restrict found) {
    return __lxstat64(STAT_VERSION, path, found);
}
