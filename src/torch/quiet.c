/*
 * A c10::WarningHandler made by hand; see quiet.h. Its virtual table follows the Itanium C++ ABI:
 * two destructors, then process(const c10::Warning &).
 */
#include "quiet.h"

#include <string.h>

#include "aoti.h"

typedef struct handler handler;

typedef void (*handler_function)(handler *self, const void *warning);

struct handler {
    const handler_function *virtual_table;
};

enum { PROCESS = 2 };

/* The head of libstdc++'s std::string. */
typedef struct string {
    const char *text;
    size_t length;
} string;

static handler *previous;
static bool previous_always;

static void destroy(handler *self, const void *unused) {
    (void)self, (void)unused;
}

static void process(handler *self, const void *warning) {
    static const char overriding[] = "Overriding a previously registered kernel";
    (void)self;
    const string *said = torch.warning_text(warning);
    if (!memmem(said->text, said->length, overriding, sizeof overriding - 1))
        previous->virtual_table[PROCESS](previous, warning);
}

/* In C++ the address of a virtual table's first function comes after its offset and type. */
static const struct {
    ptrdiff_t offset_to_top;
    const void *type;
    handler_function functions[3];
} table = {0, NULL, {destroy, destroy, process}};

static handler ours = {table.functions};

static bool available(void) {
    return torch.set_warning_handler && torch.get_warning_handler && torch.set_warn_always &&
           torch.get_warn_always && torch.warning_text;
}

void quiet_begin(void) {
    if (!available())
        return;
    previous = torch.get_warning_handler();
    previous_always = torch.get_warn_always();
    torch.set_warning_handler(&ours);
    torch.set_warn_always(true);
}

void quiet_end(void) {
    if (!available())
        return;
    torch.set_warn_always(previous_always);
    torch.set_warning_handler(previous);
}
