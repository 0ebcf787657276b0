#include "thrown.h"

#include <stdio.h>
#include <string.h>

#include "aoti.h"
#include "planish_torch.h"

static _Thread_local planish_status thrown = PLANISH_OK;

void throw_unless_ok(planish_status status, const char *text) {
    static const char holder[] = "op->";
    if (status == PLANISH_OK)
        return;
    char sentence[640];
    int length = snprintf(sentence, sizeof sentence, "%s",
                          status == PLANISH_ERROR_UNAVAILABLE ? "planish has no kernel for this: "
                                                              : "planish: ");
    while (*text && length < (int)sizeof sentence - 1) {
        if (!strncmp(text, holder, strlen(holder)))
            text += strlen(holder);
        else
            sentence[length++] = *text++;
    }
    sentence[length] = 0;
    thrown = status;
    torch_throw(sentence);
}

planish_status planish_torch_take_thrown(void) {
    const planish_status taken = thrown;
    thrown = PLANISH_OK;
    return taken;
}
