"""A process beside the bench's own that measures when it is told to (providers/processes.py).

It reads one JSON request a line on stdin and answers with one JSON line on stdout: "prepare" makes
the case's input anew (the same, being seeded) and answers with a checksum of every output; "time"
runs the work; "close" forgets it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch

from .case import Case, make_data
from .providers import in_process
from .providers.base import Run, UnsupportedError
from .providers.processes import checksum


def serve() -> None:
    """Answers requests until stdin ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints goes to stderr, not into an answer
    torch.set_num_threads(int(sys.argv[1]))
    if sys.argv[2] == "1":
        import planish

        planish.enable()
    providers = {provider.name: provider for provider in in_process()}
    runs: dict[str, Run] = {}
    for line in sys.stdin:
        request = json.loads(line)
        name = request["provider"]
        answer: Any = None
        reply: dict[str, Any] = {}
        try:
            if request["do"] == "prepare":
                case = Case(**request["case"])
                runs[name] = providers[name].prepare(case, make_data(case))
                answer = checksum(runs[name].outputs())
            elif request["do"] == "time":
                seconds = runs[name].timed(request["count"])
                answer = [seconds, getattr(seconds, "on_core", 1.0)]
            else:
                runs.pop(name).close()
            reply["answer"] = answer
        except UnsupportedError as error:
            reply["unsupported"] = str(error)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    serve()
