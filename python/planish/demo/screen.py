"""What the demo prints: tables of norms and of steps, what planish counted. Measures nothing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

import planish
from planish.bench.timing import Sample, ratio
from planish.demo.picture import AFTER, BEFORE, NormReport, StepReport

# The bound on every output, in ULP of the largest magnitude in the row (y, dx) or of the largest
# sum of the magnitudes added (dweight, dbias).
BOUND_ULP = 4.0
BOUND_TEXT = (
    "  ULP against f64: y and dx of the largest magnitude in the row, "
    "dweight and dbias of their largest sum of magnitudes"
)
KERNELS = (BEFORE, AFTER)
OUTPUTS = ("y", "dx", "dweight", "dbias")


class Screen:
    """Prints in colour on a terminal and plainly elsewhere."""

    def __init__(self) -> None:
        self.colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def paint(self, text: str, code: str) -> str:
        """The text in a colour."""
        return f"\033[{code}m{text}\033[0m" if self.colour else text

    def say(self, text: str = "") -> None:
        """One line."""
        print(text, flush=True)

    def doing(self, text: str) -> Callable[[], None]:
        """Announces a long step; the returned function says how long it took."""
        print(self.paint(f"  {text} ... ", "2"), end="", flush=True)
        begin = time.perf_counter()

        def done() -> None:
            print(self.paint(f"{time.perf_counter() - begin:.1f} s", "2"), flush=True)

        return done

    def times(self, samples: dict[str, Sample]) -> str:
        """How many times as fast, or that it is noise, or that there is no difference; green above
        1.02, red under 0.98."""
        found = ratio(samples[BEFORE], samples[AFTER])
        code = "32" if found.value > 1.02 else ("31" if found.value < 0.98 else "0")
        return self.paint(f"{found!s:>13}", "2" if found.noisy or found.even else code)


def print_norms(screen: Screen, reports: Sequence[NormReport]) -> None:
    """The table of norms."""
    times = f"{'torch':>10}{'planish':>11}{'':>14}"
    errors = "".join(f"{key:>15}" for key in OUTPUTS)
    head = f"  {'norm':24}{'dtype':>6}{'calls':>6} |{'forward, us':>21}{'':>14}"
    head += f" |{'backward, us':>21}{'':>14} |{'largest error in ULP, torch / planish':>60}"
    screen.say(screen.paint(head, "1"))
    screen.say(f"  {'':36} |{times} |{times} |{errors}")
    for report in reports:
        line = f"  {report.call.shape:24}{report.call.dtype:>6}{report.call.calls:>6}"
        for samples in (report.forward, report.backward):
            if samples:
                noise = ratio(samples[BEFORE], samples[AFTER]).noisy
                before, after = (
                    "-" if noise else f"{samples[name].median * 1e6:.0f}" for name in KERNELS
                )
                line += f" |{before:>10}{after:>11} {screen.times(samples)}"
            else:
                line += f" |{'-':>10}{'-':>11}{'':>14}"
        line += " |"
        for key in OUTPUTS:
            old, new = report.ulp[BEFORE].get(key), report.ulp[AFTER].get(key)
            text = "-" if old is None or new is None else f"{old:.3g} / {new:.3g}"
            broken = new is not None and not new <= BOUND_ULP
            line += screen.paint(f"{text:>15}", "31;1" if broken else "0")
        screen.say(line)
    screen.say(screen.paint(BOUND_TEXT, "2"))


def print_steps(screen: Screen, reports: Sequence[StepReport]) -> None:
    """The whole steps."""
    for report in reports:
        before, after = (report.samples[name] for name in (BEFORE, AFTER))
        if ratio(before, after).noisy:
            times = f"{screen.times(report.samples)}: other work had the cores (--threads 1 helps)"
        else:
            times = (
                f"{before.median * 1e3:8.1f} ms -> {after.median * 1e3:8.1f} ms "
                f"{screen.times(report.samples)}   (quartiles within "
                f"{50 * max(before.spread, after.spread):.1f}%)"
            )
        losses = f"loss {report.losses[BEFORE]:.6f} -> {report.losses[AFTER]:.6f}"
        screen.say(f"  {report.step:14} {times}   {losses}")


def print_stats(screen: Screen) -> bool:
    """What planish.stats() counted; whether planish ran any norm."""
    found = planish.stats()
    screen.say("  planish.stats():")
    for line in str(found).splitlines():
        screen.say(f"    {line}")
    return any(counts["planish"] for counts in found.values())
