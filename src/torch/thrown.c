#include "thrown.h"

#include <stdio.h>

#include "aoti.h"
#include "planish_torch.h"

static _Thread_local planish_status thrown = PLANISH_OK;

void throw_status(planish_status status, const char *text) {
    if (status == PLANISH_OK)
        return;
    char sentence[640];
    snprintf(sentence, sizeof sentence, "planish: %s (%s)", text, planish_status_name(status));
    thrown = status;
    torch_throw(sentence);
}

planish_status planish_torch_take_thrown(void) {
    const planish_status taken = thrown;
    thrown = PLANISH_OK;
    return taken;
}
