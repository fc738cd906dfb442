"""Table of the forms of a program while it is lowered."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from raptor.graph.ir import Filter
from raptor.pim.operand_slots import FormSlots
from raptor.pim.operations import Buffer
from raptor.pim.step_columns import TRANSFERS, OperationForm
from raptor.spatial.dataflow import Dataflow
from raptor.spatial.ir import Copy, TakeRows
from raptor.spatial.operations import Operation


@dataclass(slots=True)
class FormCollector:
    """The forms so far. of_graph: number and slots of the graph's forms, without copies and embedding lookups.

    number: number of each form that the graph does not have.
    """

    forms: list[OperationForm] = field(default_factory=lambda: list(TRANSFERS))
    of_graph: dict[int, tuple[int, FormSlots]] = field(default_factory=dict[int, tuple[int, FormSlots]])
    number: dict[Hashable, int] = field(default_factory=dict[Hashable, int])

    @classmethod
    def from_dataflow(cls, flow: Dataflow, filters: Mapping[str, Filter]) -> "FormCollector":
        """Derives the forms of a graph's operations. filters: by key of the layer."""
        kinds = cls()
        for number, (op, compute) in enumerate(flow.forms):
            if not isinstance(op, Copy | TakeRows):
                slots = FormSlots.from_operation(op, filters[compute.layer].weight_bits if compute.matrices else 0)
                kinds.of_graph[number] = kinds.add(slots.form), slots
        return kinds

    def add(self, form: OperationForm) -> int:
        """Adds a form. Returns its number."""
        self.forms.append(form)
        return len(self.forms) - 1

    def of_op(self, op: Operation[Buffer]) -> int:
        """Returns the number of the form of an operation on slots; equal operations share it."""
        if op.form not in self.number:
            self.number[op.form] = self.add(OperationForm.from_operation(op))
        return self.number[op.form]
