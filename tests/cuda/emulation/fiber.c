#include "fiber.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define TELL_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TELL_SANITIZER 1
#endif
#endif
#ifdef TELL_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif

enum { STACK_BYTES = 256 << 10, GUARD_BYTES = 64 << 10 };

struct fiber {
    void *stack;
    void (*body)(void *context);
    void *context;
#if defined(__x86_64__)
    void *pointer; /* of the stack while others run */
#else
    ucontext_t registers;
#endif
};

static fiber *current;
static const void *thread_stack; /* as the sanitizer names it */
static size_t thread_stack_bytes;

#if defined(__x86_64__)
static void *thread_pointer;

/* Keeps this stack's registers on it, and goes on with another's. ucontext does the same with two
 * system calls. */
void fiber_switch(void **save, void *load);
__asm__(".text\n.globl fiber_switch\n.type fiber_switch, @function\nfiber_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size fiber_switch, .-fiber_switch\n");
#else
static ucontext_t thread_registers;
#endif

static void begin(void) {
#ifdef TELL_SANITIZER
    __sanitizer_finish_switch_fiber(NULL, &thread_stack, &thread_stack_bytes);
#endif
    current->body(current->context);
    abort();
}

fiber *fiber_make(void (*body)(void *context), void *context) {
    fiber *f = malloc(sizeof *f);
    char *memory = mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!f || memory == MAP_FAILED ||
        mprotect(memory + GUARD_BYTES, STACK_BYTES, PROT_READ | PROT_WRITE)) {
        free(f);
        return NULL;
    }
    f->stack = memory + GUARD_BYTES;
    f->body = body;
    f->context = context;
#if defined(__x86_64__)
    /* As if begin() had been interrupted at its start by fiber_switch. */
    void **top = (void **)((char *)f->stack + STACK_BYTES) - 2;
    top[0] = (void *)(uintptr_t)begin;
    top[1] = NULL;
    for (int i = 1; i <= 6; i++)
        top[-i] = NULL;
    f->pointer = top - 6;
#else
    getcontext(&f->registers);
    f->registers.uc_stack.ss_sp = f->stack;
    f->registers.uc_stack.ss_size = STACK_BYTES;
    f->registers.uc_link = NULL;
    makecontext(&f->registers, begin, 0);
#endif
    return f;
}

void fiber_enter(fiber *f) {
    current = f;
#ifdef TELL_SANITIZER
    void *fake = NULL;
    __sanitizer_start_switch_fiber(&fake, f->stack, STACK_BYTES);
#endif
#if defined(__x86_64__)
    fiber_switch(&thread_pointer, f->pointer);
#else
    swapcontext(&thread_registers, &f->registers);
#endif
#ifdef TELL_SANITIZER
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#endif
}

void fiber_leave(void) {
    fiber *self = current;
#ifdef TELL_SANITIZER
    void *fake = NULL;
    __sanitizer_start_switch_fiber(&fake, thread_stack, thread_stack_bytes);
#endif
#if defined(__x86_64__)
    fiber_switch(&self->pointer, thread_pointer);
#else
    swapcontext(&self->registers, &thread_registers);
#endif
#ifdef TELL_SANITIZER
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#endif
}
