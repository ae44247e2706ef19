"""Checks of the sums that a step returns."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from hyrt.device import InputForm, StepResult
from hyrt.device.capabilities import FeatureCacheDevice, KeepsHostBudget, RunsChunks, usable_forms
from hyrt.errors import PluginConflictError, UnsupportedModelError
from hyrt.fullgraph.intervals import ChunkOptions
from hyrt.fullgraph.matrix_pool import HostMemoryBudget
from hyrt.graph.quantized.row_format import ROW_FORMATS
from hyrt.graph.row_source import DenseFeatures
from hyrt.nn.model import GNN
from hyrt.objective.objective import sum_counts
from hyrt.sampling.minibatch import MiniBatch
from hyrt.testing import cases
from hyrt.testing.cases import ModelCase
from hyrt.testing.trial import (
    CheckFailedError,
    Trial,
    build_or_skip,
    check_agreement,
    check_refusal,
    check_same_bits,
    check_step,
    compute_reference,
    copy_result,
    load_model,
    load_or_skip,
    require,
    run_step,
    skip_unless,
    split_targets,
    trainable_parameters,
)


def sums_agree_with_float64(trial: Trial, case: ModelCase) -> None:
    """Check loss sum, correct count and gradient sums, with and without class, target and edge weights."""
    model = build_or_skip(case)
    device = load_or_skip(trial, model)
    graph, layers = trial.graph(model=model), model.architecture.layers
    targets = cases.sample_targets()
    for where, batch in {
        "sampled neighbours": cases.sampled_batch(graph, layers, targets, cases.ROWS),
        "class weights": cases.sampled_batch(graph, layers, targets, cases.ROWS, class_weights=True),
        "subgraphs with edge factors": cases.saint_batch(graph, layers, cases.ROWS),
        "another step": cases.sampled_batch(graph, layers, targets, cases.ROWS, step=cases.STEP + 1),
    }.items():
        check_step(device, model, batch, graph, where)
    if model.architecture.aggregate == "max":
        return  # Max aggregation ignores edge weights, so models with it are rejected for weighted graphs.
    weighted = cases.add_edge_weights(graph)
    for where, batch in {
        "edge weights": cases.sampled_batch(weighted, layers, targets, cases.ROWS),
        "edge weights and factors": cases.saint_batch(weighted, layers, cases.ROWS),
    }.items():
        check_step(device, model, batch, weighted, where)


def a_user_module_is_trained_or_refused(trial: Trial) -> None:
    """Check a module that reads blocks through edge lists. Its unused parameter must have a zero gradient."""
    model = cases.randomize_parameters(cases.EdgeListModule())
    device = load_or_skip(trial, model)
    graph = cases.make_graph(13, 2)
    batch = cases.sampled_batch(graph, 2, cases.sample_targets(), cases.ROWS)
    check_step(device, model, batch, graph)


def frozen_parameters_are_left_out_or_refused(trial: Trial) -> None:
    """Check that gradients correspond to the parameters that were passed to load."""
    model: Any = trial.model()
    next(iter(model.parameters())).requires_grad_(False)
    device = load_or_skip(trial, model)
    batch = trial.batch()
    check_step(device, model, batch, trial.graph())


def statistics_over_a_mini_batch_are_refused(trial: Trial) -> None:
    """Check that BatchNorm is rejected, because the result would depend on the split."""
    model = cases.StatisticsModule()
    device = trial.open()
    try:
        load_model(device, model)
    except UnsupportedModelError as refusal:
        check_refusal(refusal, model, device.info.name)
    else:
        raise CheckFailedError("expected UnsupportedModelError for a module with BatchNorm; load accepted it")


def a_full_graph_is_a_step(trial: Trial) -> None:
    """Check full-graph steps. A device may cache their arrays, but dropout must change with the step."""
    device = trial.open()
    skip_unless(device.info.whole_graphs, "it does not train full graphs")
    for case in (trial.supported_case(2), trial.supported_case(3), *_with_dropout(trial)):
        model = case.build()
        load_model(device, model)
        graph, layers = trial.graph(model=model), model.architecture.layers
        few, many = np.sort(cases.sample_targets(25)), np.sort(cases.sample_targets(90))
        first, second = cases.full_graph_batches(graph, layers, few, cases.ROWS, steps=[0, 1])
        [other] = cases.full_graph_batches(graph, layers, many, cases.ROWS, class_weights=True)
        for where, batch in {
            "the first step": first,
            "the next step": second,
            "other targets, with class weights": other,
            "the first targets again": first,
        }.items():
            check_step(device, model, batch, graph, f"{case.name}, {where}")
        rows = graph.features
        assert isinstance(rows, DenseFeatures)
        reversed_graph = graph.with_features(DenseFeatures(np.ascontiguousarray(rows.values[::-1])))
        [reversed_batch] = cases.full_graph_batches(reversed_graph, layers, few, cases.ROWS)
        check_step(
            device, model, reversed_batch, reversed_graph, f"{case.name}, a graph with different features"
        )
        check_same_bits(run_step(device, first), copy_result(run_step(device, first)), "in a repeated step")
        staged = [device.transfer(batch) for batch in (first, other, second)]
        for batch, handle in zip((first, other, second), staged, strict=True):
            check_agreement(
                device.propagate(handle),
                compute_reference(model, batch, graph),
                f"{case.name}, several in flight",
            )


def a_full_graph_in_chunks_is_a_step(trial: Trial) -> None:
    """Check full-graph steps for several numbers of chunks, both orders, and features as rows or in place."""
    device = trial.open()
    skip_unless(isinstance(device, RunsChunks), "it does not train in chunks")
    assert isinstance(device, RunsChunks)
    for case in (trial.supported_case(2), trial.supported_case(3), *_with_dropout(trial)):
        model = case.build()
        graph, layers = trial.graph(model=model), model.architecture.layers
        plans = [cases.ROWS, *filter(None, [cases.input_plan(model, "in_place")])]
        targets = cases.sample_targets(90)
        relabelled = cases.full_graph_batches(
            graph, layers, targets, cases.ROWS, steps=[0, 1], class_weights=True
        )
        references = [compute_reference(model, batch, graph) for batch in relabelled]
        for options in (ChunkOptions(), ChunkOptions(7), ChunkOptions(3, "row-column")):
            device.take_chunks(options)
            load_model(device, model)
            for plan in plans:
                where = f"{case.name}, {options.num} chunks, {options.order}, inputs {plan.form}"
                steps = cases.full_graph_batches(
                    graph, layers, targets, plan, steps=[0, 1], class_weights=True
                )
                for batch, reference in zip(steps, references, strict=True):
                    check_agreement(run_step(device, batch), reference, where)
                num = device.num_chunks
                is_valid = num is not None and num >= 1 and num in (options.num or num, graph.num_vertices)
                require(is_valid, f"{options.num or 'some'} chunks", f"num_chunks is {num} ({where})")
                check_same_bits(
                    run_step(device, steps[0]),
                    copy_result(run_step(device, steps[0])),
                    f"of a repeated step ({where})",
                )


def a_budget_of_host_memory_changes_no_bit(trial: Trial) -> None:
    """Check that a step gives the same bits if its matrices are in files."""
    device = trial.open()
    skip_unless(isinstance(device, KeepsHostBudget), "it does not store matrices in files")
    assert isinstance(device, KeepsHostBudget)
    if isinstance(device, RunsChunks):
        device.take_chunks(ChunkOptions(3))
    case = trial.supported_case(3)
    model = case.build()
    graph, layers = trial.graph(model=model), model.architecture.layers
    batches = cases.full_graph_batches(graph, layers, cases.sample_targets(90), cases.ROWS, steps=[0, 1])
    references: list[StepResult] = []
    for budget in (HostMemoryBudget(), HostMemoryBudget(0)):
        device.take_host_budget(budget)
        load_model(device, model)
        results = [copy_result(run_step(device, batch)) for batch in batches]
        for result, reference in zip(results, references or results, strict=True):
            check_same_bits(result, reference, f"with a budget of {budget.limit_bytes} bytes")
        references = results


def _with_dropout(trial: Trial) -> list[ModelCase]:
    """Return a list with the first supported model that has dropout; empty if there is none."""
    for case in cases.model_cases():
        if "dropout" in case.settings:
            with suppress(UnsupportedModelError, PluginConflictError):
                load_model(trial.open(), case.build())
                return [case]
    return []


def one_target_and_isolated_vertices(trial: Trial) -> None:
    """Check mini-batches of a vertex with neighbours, and of one and several isolated vertices."""
    model = trial.model()
    device = trial.open_loaded(model)
    isolated = list(cases.ISOLATED)
    for where, targets in {
        "one target": [cases.HUB],
        "one isolated target": isolated[:1],
        "isolated targets only": isolated,
    }.items():
        batch = trial.batch(np.array(targets, np.int32))
        check_step(device, model, batch, trial.graph(), where)


def repeated_edges_count_each_time(trial: Trial) -> None:
    """Check that a block may contain the same edge several times."""
    model: Any = trial.model()
    graph, layers = trial.graph(), model.architecture.layers
    ids = np.array([20, 21, 22, 23, 24], np.int32)
    columns = np.array([1, 1, 1, 0, 4, 4, 2], np.int32)
    degrees = np.array([9, 0, 4, 2, 1], np.int32)
    indptr = np.array([0, 4, 4, 7, 7, 7], np.int32)
    blocks = cases.square_blocks(ids, indptr, columns, degrees, layers)
    rows = cases.dense_rows(graph, ids)
    inputs = torch.from_numpy(rows.astype(np.float32))
    batch = MiniBatch(cases.STEP, ids, blocks, graph.vertices.select_labels(ids), None, 5.0, inputs)
    check_step(trial.open_loaded(model), model, batch, graph)


def vertices_may_be_64_bits_wide(trial: Trial) -> None:
    """Check 64-bit ids, for graphs with more than 2^31 vertices; relabelled blocks keep int32 columns."""
    model = trial.model()
    device = trial.open_loaded(model)
    batch32 = trial.batch()
    batch64 = trial.batch()
    batch64.targets = batch64.targets.astype(np.int64)
    for block in batch64.blocks:
        assert block.sources is not None
        block.destinations = block.destinations.astype(np.int64)
        block.sources = block.sources.astype(np.int64)
    check_same_bits(
        run_step(device, batch64), copy_result(run_step(device, batch32)), "for vertex ids of 64 bits"
    )


def large_scores_do_not_overflow(trial: Trial) -> None:
    """Check that large scores do not overflow, which requires that a softmax subtracts the largest score."""
    model = trial.model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(30)
    result = run_step(trial.open_loaded(model), trial.batch())
    reference = compute_reference(model, trial.batch(), trial.graph())
    close = math.isclose(result.loss_sum, reference.loss_sum, rel_tol=1e-3)
    require(close, f"the loss sum {reference.loss_sum:.6g}", f"it is {result.loss_sum:.6g}")
    finite = all(bool(gradient.isfinite().all()) for gradient in result.gradients)
    require(finite, "finite gradients for large scores", "some are not finite")


def weights_that_are_not_numbers_show(trial: Trial) -> None:
    """Check that divergence is visible: with NaN weights, the loss or a gradient must not be finite."""
    model = trial.model()
    device = trial.open_loaded(model)
    device.update([torch.full_like(parameter, math.nan) for parameter in trainable_parameters(model)])
    result = run_step(device, trial.batch())
    is_visible = not math.isfinite(result.loss_sum) or any(
        not bool(gradient.isfinite().all()) for gradient in result.gradients
    )
    require(is_visible, "a loss or gradient of NaN for NaN weights", f"the loss sum is {result.loss_sum}")


def two_parts_add_up_to_the_whole(trial: Trial) -> None:
    """Check that results are sums over targets, never means."""
    model = trial.model()
    device = trial.open_loaded(model)
    targets = cases.sample_targets(40)
    whole = compute_reference(model, trial.batch(targets), trial.graph())
    parts = [copy_result(run_step(device, trial.batch(part))) for part in split_targets(targets, [11])]
    total = StepResult(
        loss_sum=sum(part.loss_sum for part in parts),
        counts=sum_counts(part.counts for part in parts),
        normalizer=sum(part.normalizer for part in parts),
        gradients=[a + b for a, b in zip(parts[0].gradients, parts[1].gradients, strict=True)],
    )
    check_agreement(total, whole, "11 and 29 of 40 targets")
    both = (total.counts["targets"], total.normalizer)
    require(
        both == (40, 40.0), "11 and 29 targets to add up to 40", f"got {total.counts}, {total.normalizer}"
    )


def load_uses_the_passed_parameters(trial: Trial) -> None:
    """Check that load copies the passed parameters, and ignores the parameters of the module."""
    model = trial.model()
    passed = [torch.full_like(parameter, 0.0) for parameter in trainable_parameters(model)]
    device = trial.open()
    device.load(model, passed)
    zero = len(trial.batch().targets) * math.log(trial.graph().num_classes)
    for tensors in (passed, trainable_parameters(model)):
        loss_sum = run_step(device, trial.batch()).loss_sum
        require(
            math.isclose(loss_sum, zero, rel_tol=1e-5),
            f"the loss sum {zero:.6g} of the zero parameters passed to load, even if the tensors and the "
            "module change afterwards",
            f"it is {loss_sum:.6g}",
        )
        with torch.no_grad():
            for tensor in tensors:
                tensor.fill_(5.0)


def update_takes_new_weights(trial: Trial) -> None:
    """Check that update copies the new weights, in the order of load, with immediate effect."""
    model: GNN = trial.supported_case().build()
    device = trial.open_loaded(model)
    run_step(device, trial.batch())
    cases.randomize_parameters(model, seed=9)
    new = [parameter.detach().clone() for parameter in trainable_parameters(model)]
    device.update(new)
    reference = compute_reference(model, trial.batch(), trial.graph())
    check_agreement(run_step(device, trial.batch()), reference, "after an update")
    for tensor in new:
        tensor.zero_()
    check_agreement(
        run_step(device, trial.batch()), reference, "after the tensors of an update were overwritten"
    )


def a_second_load_replaces_the_first(trial: Trial) -> None:
    """Check that the same device can load and train another model."""
    device = trial.open_loaded()
    run_step(device, trial.batch())
    loaded = 0
    for case in cases.model_cases():
        try:
            model = case.build()
            load_model(device, model)
        except (UnsupportedModelError, PluginConflictError):
            continue
        batch = trial.batch(model=model)
        check_step(device, model, batch, trial.graph(model=model), case.name)
        loaded += 1
        if loaded == 4:
            return


def input_form_gives_the_same(trial: Trial, form: InputForm) -> None:
    """Check an input form with every model that supports it, and with features of every format."""
    forms = trial.open().info.forms
    skip_unless(form in forms, f"it accepts only {', '.join(forms)}")
    done = 0
    for number, case in enumerate(cases.model_cases()):
        if case.settings["layers"] == 3 and "dropout" not in case.settings:
            continue
        device = trial.open()
        try:
            model = case.build()
            plan = cases.input_plan(model, form)
            if plan is None:
                continue
            load_model(device, model)
        except (UnsupportedModelError, PluginConflictError):
            continue
        for row_format in _formats(form, number):
            graph = trial.graph(model=model, sparse=form == "sparse", row_format=row_format)
            if form == "ids" and form not in usable_forms(device, graph):
                continue
            if isinstance(device, FeatureCacheDevice) and form == "cached":
                load_model(device, model)
                try:
                    plan = cases.cache_some_rows(device, graph)
                except UnsupportedModelError:
                    break  # With this model, the device has no use for cached rows.
            rows = cases.sampled_batch(graph, model.architecture.layers, cases.sample_targets(), cases.ROWS)
            batch = cases.sampled_batch(graph, model.architecture.layers, cases.sample_targets(), plan)
            check_agreement(
                run_step(device, batch), compute_reference(model, rows, graph), f"{case.name}, {row_format}"
            )
            done += 1
        device.close()
    skip_unless(done > 0, "no model that it supports accepts this form")


def _formats(form: InputForm, number: int) -> list[str]:
    """Return the feature formats to test with an input form; `number` selects the quantized format."""
    if form == "sparse":
        return ["float32"]
    names = [name for name, row_format in ROW_FORMATS.items() if row_format.is_quantized]
    quantized = names[number % len(names)]
    if form == "quantized":
        return [quantized]
    if form == "cached":
        # For every second model, cached and sent rows are int8 codes with one scale per row.
        return ["float32", "int8"] if number % 2 else [quantized]
    return ["float32", quantized if form == "aggregated" else "float16"]
