"""The steps of an epoch: each launched from the CPU, or one captured as a CUDA graph and replayed.

Networks of the size that symmetries are learned in are bound by the launch of kernels on a GPU, not by arithmetic. A captured
step reads its lines of the plan of the epoch (which data, how augmented) at a counter that it moves itself, so an epoch is that
many replays and a single wait.
"""

import gc
import logging
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor, nn

from symbayes.data.source import Batch, DataSource, TensorSource
from symbayes.invariance.ahead import DrawsByNumber

_log = logging.getLogger("symbayes")

_CAPTURING = threading.Lock()

#: What a step does with a batch: it moves the weights, and gives the loss summed over data.
Step = Callable[[Batch], Tensor]


@dataclass(frozen=True)
class Callback:
    """What is done beside every so-many-th step.

    Args:
        call: With the batch of that step; without augmentation, unless a user's Dataset or DataLoader augments what it gives.
        every: Steps from one time to the next.
    """

    call: Callable[[Batch], None]
    every: int


class Steps:
    """Steps that are launched from the CPU.

    Args:
        data: To be read.
        batch_size: Data in a step.
        step: What to do with a batch.
        callback: What to do beside some of them.
    """

    def __init__(self, data: DataSource, batch_size: int, step: Step, callback: Callback | None = None) -> None:
        self.data, self.batch_size, self.step, self.callback = data, batch_size, step, callback
        self._taken = 0
        #: Data in a whole batch: as many as in the first, because a DataLoader has a size of its own.
        self._whole = 0

    def epoch(self, generator: Generator) -> Tensor:
        """One pass over the data; the loss summed over them, still on the device."""
        total: Tensor = torch.zeros(())
        for batch, size, as_they_are in self._batches(generator):
            total = total + self.step(batch) * self.data.processes.step_share(size)[1]
            if self._is_called(size):
                assert self.callback is not None
                self.callback.call(as_they_are())
        return self.data.processes.sum([total])[0]

    def _batches(self, generator: Generator) -> Iterator[tuple[Batch, int, Callable[[], Batch]]]:
        """What this process has of each batch of a pass, the size of the batch, and all of it without augmentation."""
        share = self.data.processes.step_share
        if isinstance(self.data, TensorSource):
            for plan in self.data.plans(self.batch_size, generator):
                yield self.data.planned(plan[share(len(plan))[0]]), len(plan), partial(self.data.as_they_are, plan)
            return
        for batch in self.data.training_batches(self.batch_size, generator):
            mine, _ = share(len(batch[0]))
            yield (batch[0][mine], batch[1][mine]), len(batch[0]), partial(_same, batch)

    def forget(self) -> None:
        """Steps are not as they were: what was captured of them does not hold any more."""

    def state_dict(self) -> dict[str, Any]:
        """How many steps were taken, and of how many data."""
        return {"taken": self._taken, "whole": self._whole}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what `state_dict` gave; other tensors may lie in other memory now, so steps are captured again."""
        self._taken, self._whole = int(state["taken"]), int(state["whole"])
        self.forget()

    def _is_called(self, size: int) -> bool:
        """Whether to call back beside this step; only with whole batches, which count alike."""
        self._taken += 1
        self._whole = self._whole or size
        return self.callback is not None and self._taken % self.callback.every == 0 and size == self._whole


def _same(batch: Batch) -> Batch:
    return batch


class CapturedSteps(Steps):
    """Steps of which one is captured as soon as they are alike, and replayed from then on.

    Args:
        data: On a CUDA device.
        batch_size: Data in a step; those left over at the end of an epoch are a step from the CPU.
        step: What to do with a batch. It must not wait for the device.
        callback: What to do beside some of them; nor may that.
        settled: Whether all steps from now on are alike.
        generators: From which steps draw on the device.
        model: Whose modules that draw by the number of a pass do so before the steps that are replayed.
    """

    def __init__(
        self,
        data: TensorSource,
        batch_size: int,
        step: Step,
        callback: Callback | None,
        settled: Callable[[], bool],
        generators: Sequence[Generator],
        model: nn.Module | None = None,
    ) -> None:
        super().__init__(data, batch_size, step, callback)
        self.source, self.settled, self.generators = data, settled, generators
        modules = model.modules() if model is not None else ()
        self._drawing = [_Drawing(module) for module in modules if isinstance(module, DrawsByNumber)]
        #: Steps of this epoch that are done, and all of them.
        self._done = self._whole_steps = 0
        self._graphs: dict[Callable[[], None], torch.cuda.CUDAGraph] = {}
        self._plan = torch.empty(0)
        self._at = torch.zeros(1, dtype=torch.long, device=data.inputs.device)
        self._total = torch.zeros((), device=data.inputs.device)

    def epoch(self, generator: Generator) -> Tensor:
        plan, size = self.source.plan(generator), self.batch_size
        whole = len(plan) // size
        if len(plan) - whole * size == 1:  # batch norms cannot train on a single datum
            whole -= 1
        lines = plan[: whole * size].unflatten(0, (whole, size))
        if self._plan.shape != lines.shape:
            self._plan = torch.empty_like(lines)
        self._plan.copy_(lines)
        self._at.zero_()
        self._total.zero_()
        rest = plan[whole * size :]
        self._done, self._whole_steps = 0, whole
        if self._step in self._graphs:
            self._fill(0)
        for _ in range(whole):
            self._run(self._step)
            self._done += 1
            if self._is_called(size):
                self._run(self._call)
        if len(rest):
            self._total += self.step(self.source.planned(rest))
            self._is_called(len(rest))
        return self._total.clone()

    def _fill(self, first: int) -> None:
        for drawing in self._drawing:
            drawing.fill(first, self._whole_steps)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Modules read what was drawn for the step that is next, rather than drawing."""
        with ExitStack() as stack:
            for drawing in self._drawing:
                stack.enter_context(drawing.read(self._at))
            yield

    def forget(self) -> None:
        self._graphs.clear()

    def _step(self) -> None:
        found = self.step(self.source.planned(self._lines()))
        if found.dtype != self._total.dtype:  # seen by the first step, which is from the CPU
            self._total = self._total.to(found.dtype)
        self._total += found
        self._at += 1

    def _call(self) -> None:
        assert self.callback is not None
        self.callback.call(self.source.as_they_are(self._lines(-1)))

    def _lines(self, shift: int = 0) -> Tensor:
        """Of the plan, for the step that is next."""
        return self._plan.index_select(0, self._at + shift)[0]

    def _run(self, work: Callable[[], None]) -> None:
        if work in self._graphs:
            self._graphs[work].replay()
            if work == self._step:
                for drawing in self._drawing:
                    drawing.skip()
            return
        if not self.settled():
            work()
            return
        before = _cpu_random_state()
        with ExitStack() as stack:
            for drawing in self._drawing:
                stack.enter_context(drawing.watch())
            work()
        if _cpu_random_state() == before:
            if work == self._step or not any(drawing.counts for drawing in self._drawing):
                self._capture(work)
            return
        _log.warning("The model draws random numbers on the CPU, which a CUDA graph would repeat: no step is captured.")
        self.settled = lambda: False

    def _capture(self, work: Callable[[], None]) -> None:
        if work == self._step:
            for drawing in self._drawing:
                drawing.prepare(self._whole_steps, self._at.device)
        with self._reading():
            graph = self._record(work)
        if graph is None:
            return
        self._graphs[work] = graph
        if work == self._step:
            self._fill(self._done + 1)

    def _record(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        """What work does, as a graph; None if it cannot be captured."""
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        before = _BeforeCapture(self.source.inputs.device, self.generators)
        try:
            # Other threads may use the device meanwhile, but not capture.
            with _CAPTURING, _nothing_collected(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
                work()
        except RuntimeError as error:
            _log.warning("A step could not be captured as a CUDA graph, so every step is launched from the CPU: %s", error)
            self.settled = lambda: False
            self.forget()
            before.restore()
            return None
        return graph


class _Drawing:
    """What a module draws in steps that are replayed: a table on the device for each of its passes in a step, a line a step.

    Args:
        module: That draws.
    """

    def __init__(self, module: DrawsByNumber) -> None:
        self.module = module
        #: Data in each pass of a step.
        self.counts: list[int] = []
        self._tables: list[Tensor] = []

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Note the passes of a step, which draw as usual."""
        self.counts = []

        def note(count: int) -> Tensor:
            self.counts.append(count)
            self.module.passes += 1
            return self.module.drawn(self.module.passes, count)

        with self.module.drawing_from(note):
            yield

    def prepare(self, steps: int, device: torch.device) -> None:
        """Make room for so many steps as the last that was watched; graphs read the same memory from then on."""
        like = [self.module.drawn(1, count) for count in self.counts]
        self._tables = [torch.empty(steps, *drawn.shape, dtype=drawn.dtype, device=device) for drawn in like]

    def fill(self, first: int, steps: int) -> None:
        """Draw what steps from `first` on will read."""
        number = self.module.passes
        for step in range(first, steps):
            for table, count in zip(self._tables, self.counts, strict=True):
                number += 1
                table[step].copy_(self.module.drawn(number, count))

    @contextmanager
    def read(self, at: Tensor) -> Iterator[None]:
        """Passes read the line at a counter on the device."""
        tables = iter(self._tables)
        with self.module.drawing_from(lambda count: next(tables).index_select(0, at)[0]):
            yield

    def skip(self) -> None:
        """Count the passes of a step that was replayed."""
        self.module.passes += len(self.counts)


class _BeforeCapture:
    """Where the device is before a capture. One that fails leaves its stream behind, and generators that wait for its end."""

    def __init__(self, device: torch.device, generators: Sequence[Generator]) -> None:
        self.stream = torch.cuda.current_stream(device)
        of_device = torch.cuda.default_generators[self.stream.device_index]
        self.generators = [(generator, generator.get_state()) for generator in (of_device, *generators)]

    def restore(self) -> None:
        torch.cuda.set_stream(self.stream)
        for generator, state in self.generators:
            anew = torch.Generator(generator.device)
            anew.set_state(state)
            generator.graphsafe_set_state(anew)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """No garbage is collected meanwhile: the end of a graph of an earlier training would break off the capture of this one."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _cpu_random_state() -> tuple[object, ...]:
    """Where the generators of the CPU are."""
    return random.getstate(), torch.get_rng_state().numpy().tobytes()


def steps_for(
    data: DataSource,
    batch_size: int,
    step: Step,
    callback: Callback | None,
    settled: Callable[[], bool],
    generators: Sequence[Generator],
    model: nn.Module | None = None,
) -> Steps:
    """Captured steps where data lie on a CUDA device of one process, and fill more than a few batches; or from the CPU."""
    alone = data.processes.count == 1  # sums over processes may wait for the CPU
    if alone and isinstance(data, TensorSource) and data.inputs.device.type == "cuda" and data.size >= 4 * batch_size:
        return CapturedSteps(data, batch_size, step, callback, settled, generators, model)
    return Steps(data, batch_size, step, callback)
