"""The simulated trainer's clock: what tasks would take by the cycle model and an assumed link."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hyrt_hls.task.layout import CODE_BYTES, LayerRecord, Task
from hyrt_perfmodel.cycles.design import FpgaDesign
from hyrt_perfmodel.cycles.task_shape import EdgeList, LayerSizes, TaskShape
from hyrt_perfmodel.cycles.trainer_cycles import task_seconds

# PCIe 3.0 x16, 16 GB/s, of which 75 %; and what a transfer costs whatever its size.
LINK_BYTES_PER_S = 12e9
LINK_LATENCY_S = 3e-5


def task_bytes(task: Task) -> int:
    """Of all that is brought to the card for a launch, the weights aside, and of the scores."""
    read = (task.features, task.edges, task.labels, task.target_weights, task.vertices, task.task)
    targets, columns = task.score_shape
    return sum(array.nbytes for array in read) + 4 * targets * columns


def task_shape(task: Task) -> TaskShape:
    """The task's sizes and edges, as the cycle model takes them."""
    return TaskShape(
        layers=tuple(_layer_shape(task, record, i > 0) for i, record in enumerate(task.records)),
        classes=task.header.classes,
    )


def _layer_shape(task: Task, record: LayerRecord, turned: bool) -> LayerSizes:
    def edges(first: int, count: int) -> EdgeList:
        section = task.edges[first : first + count]
        return EdgeList(sources=section[:, 0], to=section[:, 1])

    return LayerSizes(
        rows=record.rows,
        parts=record.parts,
        num_src=record.num_src,
        in_width=record.in_width,
        out_width=record.out_width,
        edges=record.num_edges,
        value_bytes=CODE_BYTES[0 if turned else task.header.row_codes],
        forward=edges(record.first_edge, record.num_edges),
        backward=edges(record.first_backward_edge, record.num_backward_edges) if turned else None,
    )


@dataclass(frozen=True, slots=True)
class ModelledTime:
    """Seconds on a virtual clock."""

    design: FpgaDesign
    """The trainer's design; its field `assumed` names what is assumed of it."""

    def transfer_s(self, tasks: Iterable[Task]) -> float:
        """Of a mini-batch's way to the card."""
        return sum(LINK_LATENCY_S + task_bytes(task) / LINK_BYTES_PER_S for task in tasks)

    def propagate_s(self, tasks: Iterable[Task]) -> float:
        """Of a mini-batch's launches, one after the other on one compute unit."""
        return sum(task_seconds(task_shape(task), self.design) for task in tasks)
