"""The pass over a graph of forward and backward: each norm becomes planish's, or what inductor
makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch._inductor.custom_graph_pass import CustomGraphPass

import torch
from planish.compile import (
    channels,
    choice,
    forms,
    joins,
    neighbours,
    nodes,
    pairs,
    putting,
    quantising,
    reading,
    records,
    sums,
    table,
    written,
)
from planish.compile.reading import TORCHS, Norm, hint
from planish.library.counts import count_compiled
from torch import Tensor, fx

__all__ = ["NormPass"]


class NormPass(CustomGraphPass):
    """inductor's joint_custom_pre_pass. Its uuid is all that a choice depends on, so that graphs
    that torch keeps on the disk are those of these choices."""

    def __init__(
        self,
        mode: str,
        decompositions: dict[Any, Callable[..., Any]],
        left: Sequence[written.Left] = (),
    ) -> None:
        self.mode, self.left = mode, list(left)
        self.formulas = putting.Formulas(decompositions)

    def uuid(self) -> Any:
        return "planish", self.mode, table.digest(), torch.__version__

    def __call__(self, graph: fx.Graph) -> None:
        # Not by a graph out of a cache: it brings in all of inductor's lowerings.
        from torch._inductor.pattern_matcher import stable_topological_sort

        forms.register()
        number = self._record_left()
        for one in _graphs(graph):
            pairs.take_apart(one)
            norms = [n for n in one.nodes if n.op == "call_function" and reading.is_norm(n)]
            if norms and self.mode == choice.FASTER:
                neighbours.drop_ones(one)
            others = neighbours.of_one_input(norms) if self.mode == choice.FASTER else {}
            chosen: dict[fx.Node, choice.Choice] = {}
            for node in norms:
                number = records.begin() if number is None else number
                beside = others.get(node, ())
                first = next((chosen[one] for one in beside if one in chosen), None)
                chosen[node] = self._place(node, number, beside, first)
            for node in list(one.nodes):
                own = channels.read(node)
                if own is not None:
                    number = records.begin() if number is None else number
                    self._place_own(own, number)
            stable_topological_sort(one)

    def _record_left(self) -> int | None:
        """Says what was left before the graph was differentiated; the graph's number."""
        if not self.left:
            return None
        number = records.begin()
        for name, x, whys in self.left:
            for direction, why in whys.items():
                _record(name, direction, x, choice.Choice(False, why), number)
        self.left = []
        return number

    def _place(
        self,
        node: fx.Node,
        number: int,
        others: Sequence[fx.Node],
        first: choice.Choice | None,
    ) -> choice.Choice:
        """What was chosen. ``others``: norms of the same input, and what ``first`` of them is."""
        norm = reading.read(node)
        if norm is None:
            return self._leave(node, number)
        taken, join = norm, None
        if self.mode == choice.FASTER:  # else the bits are those of eager calls
            # With a sum beside it a norm is one call or inductor's: a sum of its own is slower.
            join = joins.of(norm)
            join = quantising.of(norm, join) or join
            taken = neighbours.without_copy(norm) if join is None else join.norm
        chosen = choice.choose(taken if join is None else norm, self.mode, join, others, first)
        if not chosen.planish and not putting.as_torchs(norm, self.formulas):
            if norm.node.target in TORCHS:
                chosen = choice.Choice(False, "inductor has no formula; torch's kernel is called")
                _record_norm(norm, chosen, number)
                return chosen
            chosen = choice.Choice(True, "it has no formula in torch's operators")
        if chosen.planish:
            neighbours.spare_copies(taken)
            if norm.is_backward:
                neighbours.make_views_again(taken)
            gradient = sums.of(norm) if self.mode == choice.FASTER else None
            if self.mode == choice.FASTER and join is None:
                taken = neighbours.lay_gradient(taken)
            if join is not None and join.quantised is not None:
                quantising.put(join, join.quantised)
            else:
                putting.as_planish(taken, join)
            if gradient is not None:
                sums.add_in_place(gradient)
        _record_norm(norm, chosen, number)
        return chosen

    def _place_own(self, own: channels.Own, number: int) -> None:
        chosen = choice.of_own(own, self.mode)
        name, x = own.node.name, reading.value(own.x)
        if not chosen.planish and not putting.as_formula(own, self.formulas):
            chosen = choice.Choice(True, "it has no formula in torch's operators")
        _record(name, "backward" if own.is_backward else "forward", x, chosen, number)

    def _leave(self, node: fx.Node, number: int) -> choice.Choice:
        """As it is, of a norm that planish has no operator for: torch's as inductor has it."""
        chosen = choice.Choice(False, "planish has no operator for it")
        if node.target not in TORCHS:
            return chosen
        is_backward = "backward" in str(node.target)
        direction = "backward" if is_backward else "forward"
        x = reading.value(nodes.argument(node, "input"))
        _record(node.name, direction, x, chosen, number)
        users = reading.users_of_results(node)
        if users is not None:
            results = {at: at for at in users}
            whole = Norm(node, False, (), reading.NOTHING, results, users)
            putting.as_torchs(whole, self.formulas)
        return chosen


def _graphs(graph: fx.Graph) -> list[fx.Graph]:
    """This one, and those of the modules that its nodes call."""
    module = graph.owning_module
    if module is None:
        return [graph]
    inner = [m.graph for m in module.modules() if isinstance(m, fx.GraphModule) and m is not module]
    return [graph, *inner]


def _record_norm(norm: Norm, chosen: choice.Choice, number: int) -> None:
    direction = "backward" if norm.is_backward else "forward"
    _record(norm.node.name, direction, norm.x, chosen, number)


def _record(name: str, direction: str, x: Tensor, chosen: choice.Choice, number: int) -> None:
    count_compiled(direction, chosen.planish, chosen.why)
    records.record(
        records.Entry(
            number,
            name,
            direction,
            tuple(hint(size) for size in x.shape),
            str(x.dtype).removeprefix("torch."),
            "planish" if chosen.planish else "inductor",
            chosen.why,
        )
    )
