"""Planted wrong decisions: all values stay right, so `validate` and `check` do not see them, but a test must.

A child imports the compiler anew with the changed tree, and runs the test that `tests.fuzz.defects` names.
"""

import sys
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.campaign import BrokenError, Draw, Part
from tests.fuzz.defects import ROOT, WRONG_DECISIONS, Defect
from tests.fuzz.isolation import isolated
from tests.fuzz.planted import plant, seed_of_commit


@dataclass(frozen=True, slots=True)
class Wrong:
    """A wrong decision as a changed text, and the test that must fail then."""

    test: str
    defect: Defect


SEARCH, TRIAL = "raptor/search/mappings.py", "raptor/mapping/trial.py"
REPORT, STORED = "raptor/output/compile_report.py", "raptor/mapping/file.py"
DECISION, COMPILER = "raptor/mapping/decision.py", "raptor/compiler.py"
KNOBS, DECIDE = "raptor/mapping/knobs.py", "raptor/mapping/decide.py"
PLACES, SCHEDULE = "raptor/spatial/mesh_placement.py", "raptor/spatial/schedule.py"
ALLOCATE, CHIP, COMMAND = "raptor/pim/allocate.py", "raptor/target/arch/loading.py", "raptor/cli/report.py"
WRITES, CUTS, UNITS = "raptor/rounds/writes.py", "raptor/rounds/cuts.py", "raptor/frontend/segments/units.py"
STAGES, STAGED, NUMBERS, EXCHANGE = (f"raptor/mapping/{n}.py" for n in ("stages", "chips", "chip_numbers", "crossing"))
LINKS = "raptor/target/arch/links.py"
SPREAD, TOKEN_CUTS, FOLLOWING, TOKEN_CORES = (
    f"raptor/mapping/{name}.py" for name in ("spread_tokens", "token_cuts", "following", "token_cores")
)
NEIGHBOURS, PIPELINE, ROWS, LOADERS = (
    f"raptor/mapping/{name}.py" for name in ("neighbours", "pipeline", "rows", "line_plans")
)
JOINED = "raptor/transforms/fuse_horizontally.py"
LAYOUTS = "raptor/transforms/token_layouts.py"
LAYOUT, AXES, POOLS = "raptor/transforms/lay_out_tokens.py", "raptor/frontend/axes.py", "raptor/spatial/line_pools.py"
CUT_LINES = "raptor/transforms/split_rows.py"
RELAYS, EVEN, MOVES, TOKENS = (
    f"raptor/spatial/{name}.py" for name in ("relays", "even_out", "move_computes", "lower_tokens")
)
CHECKED, UNFOLDED = "raptor/mapping/check.py", "raptor/mapping/line_unfolding.py"

_STAGES, _CROSSING = "tests/chips/test_stages.py::test_", "tests/chips/test_crossing.py::test_"
_DECISIONS, _SEARCHED = "tests/test_decisions.py::test_", "tests/test_search.py::test_"
_FIGURES = "tests/models/test_zoo_table.py::test_figures_are_those_of_the_table"
_PASSES = "tests/test_passes.py::test_the_text_after_every_pass"
_SPREAD = "tests/test_spread_tokens.py::test_"
_NEIGHBOURS = "tests/test_neighbours.py::test_"
_BUSIEST = f"{_NEIGHBOURS}the_busiest_core_is_as_quick_as_any_pairs_allow"
_EXCHANGE = f"{_NEIGHBOURS}an_exchange_of_cores_gains"
_JOINED = "tests/transforms/test_fuse_horizontally.py::test_"
_LAID, _SUMS = (
    "tests/transforms/test_lay_out_tokens.py::test_",
    "tests/transforms/test_fuse_parallel_branches.py::test_",
)
_STREAMS = "tests/test_blocks_stream.py::test_a_block_streams"
_COUNTED = "tests/test_lines.py::test_blocks_are_counted_as_they_are_made"
_FORMS = "tests/test_attention_forms.py::test_"
_HYBRID, _EARLY = "tests/test_token_stages.py::test_", "tests/transforms/test_sink_transposes.py::test_"
_STRIDED = "tests/transforms/test_fold_space_to_depth.py::test_"
TOKEN_STAGES = "raptor/mapping/token_stages.py"
STRIDED, LATEST = "raptor/transforms/fold_space_to_depth.py", "raptor/mapping/latest.py"
EARLY, LINES = "raptor/transforms/sink_transposes.py", "raptor/spatial/lower_lines.py"
PACES, SUMS = "raptor/mapping/paces.py", "raptor/transforms/fuse_parallel_branches.py"
COPIES = "raptor/spatial/copies.py"
_PACE = "tests/test_better_chips.py::test_the_usual_pace_depends_on_the_time_of_a_product"
REFINE, _REFINE = "raptor/spatial/refine.py", "tests/spatial/test_refine.py::test_"
_EVEN = "tests/spatial/test_even_out.py::test_"
_FIRST, _RELAYS = "tests/spatial/test_first_readers.py::test_", "tests/spatial/test_relays.py::test_"
_TEXT = f"{_DECISIONS}the_text_of_a_mapping_names_every_layer_and_its_cores"

WRONG: tuple[Wrong, ...] = (
    # What is printed of a decision
    Wrong(_TEXT, Defect(DECISION, "for name, layer in self.layers.items():", "for name, layer in list(self.layers.items())[1:]:")),
    Wrong(_TEXT, Defect(DECISION, "for name, layer in self.layers.items():", "for name, layer in list(self.layers.items())[:-1]:")),
    Wrong(_TEXT, Defect(DECISION, "for name, parts in flow.loaders.items():", "for name, parts in ():")),
    Wrong(_PASSES, Defect(DECISION, "{grid.step} a step", "a step")),
    Wrong("tests/pim/test_steps.py::test_operations_multiply_with_every_array_group", Defect(OPERATIONS, "weights=tuple(first + i for i in self.weights)", "weights=tuple(i for i in self.weights)")),
    Wrong(f"{_DECISIONS}replicas_count_the_copies_that_there_are", Defect(REPORT, "(1 + copies)", "(1 * copies)")),
    Wrong(f"{_DECISIONS}replicas_count_the_copies_that_there_are", Defect(REPORT, "return len(grid.cols) * (1 + copies)", "return (1 + copies)")),
    # What is searched
    Wrong(f"{_DECISIONS}effort_is_the_number_of_mappings_tried", Defect(SEARCH, "islice(paced_candidates(objective), effort)", "islice(paced_candidates(objective), effort - 1)")),
    Wrong(f"{_SEARCHED}no_candidate_is_left_out", Defect(SEARCH, "for p in (4, 2, 0.5)]", "for p in (4, 2)]")),
    Wrong(f"{_SEARCHED}no_candidate_is_left_out", Defect(SEARCH, 'if objective == "energy":', 'if objective == "latency":')),
    Wrong(f"{_SEARCHED}the_best_of_the_trials_is_compiled", Defect(SEARCH, "return min(trials, key=lambda t: t.figure)", "return trials[0]")),
    Wrong(f"{_SEARCHED}the_best_of_the_trials_is_compiled", Defect(SEARCH, "return min(trials", "return max(trials")),
    Wrong(f"{_SEARCHED}a_trial_costs_what_its_mapping_costs_alone", Defect(SEARCH, 'yield Candidate("raptor", RAPTOR, _aim(objective), SEARCHED[0])', 'yield Candidate("raptor", rows_with(usual), _aim(objective), SEARCHED[0])')),
    Wrong(f"{_SEARCHED}a_trial_costs_what_its_mapping_costs_alone", Defect(TRIAL, '"throughput": self.interval_ns', '"throughput": self.latency_ns')),
    Wrong(f"{_SEARCHED}a_trial_costs_what_its_mapping_costs_alone", Defect(TRIAL, '"energy": self.energy_pj}[objective]', '"energy": self.interval_ns}[objective]')),
    Wrong(f"{_SEARCHED}each_objective_is_the_best_by_its_own_measure", Defect(COMPILER, "search, graph, arch, options.objective, ", 'search, graph, arch, "latency", ')),
    Wrong(f"{_DECISIONS}a_candidate_that_does_not_fit_is_skipped_and_recorded", Defect(SEARCH, "except CapacityError as e:", "except KeyError as e:")),
    Wrong(f"{_SEARCHED}the_best_of_the_trials_is_compiled", Defect(COMPILER, "if options.objective is not None:\n        in_two", "if options.effort == 0:\n        in_two")),
    Wrong(f"{_SEARCHED}the_best_of_the_trials_is_compiled", Defect(SEARCH, "if trial is _best(self.trials):", "if trial.cost:")),
    # Transformers spread over all cores
    Wrong(f"{_SPREAD}homes_are_the_cores_that_have_sums", Defect(TOKEN_CUTS, "(p % len(ins), part)", "(0, part)")),
    Wrong(f"{_SPREAD}the_matrices_of_a_copy_are_spread_evenly", Defect(SPREAD, "(works_ns[core], self.used[core])", "(0.0, core)")),
    Wrong(f"{_SPREAD}steps_of_an_attention_have_all_its_queries", Defect(SPREAD, "min(x + each, stop)", "stop")),
    Wrong(f"{_SPREAD}cores_take_the_queries_of_a_copy_in_turns", Defect(SPREAD, "place[x], copy_of[x]", "copy_of[x], place[x]")),
    Wrong(f"{_SPREAD}attentions_send_the_first_tokens_of_each_copy_early", Defect(SPREAD, "if self.segments > 1 else stepped", "if self.segments < 1 else stepped")),
    Wrong(f"{_SPREAD}cores_that_share_a_layer_put_its_input_together_in_turns", Defect(DECISION, "group.index(channels) %", "0 %")),
    Wrong(f"{_SPREAD}a_chip_that_is_too_small_has_no_such_choice", Defect(SPREAD, "if way.fits", "if way")),
    Wrong(f"{_SPREAD}an_attention_is_on_the_cores_that_work_least", Defect(SPREAD, "key=works_ns.__getitem__", "key=int")),
    Wrong("tests/spatial/test_to_readers.py::test_a_gate_is_made_where_it_is_read", Defect("raptor/spatial/to_readers.py", "cores[compute] = wanted[0]", "cores[compute] = 0")),
    Wrong("tests/spatial/test_to_readers.py::test_what_the_first_core_reads_stays_there", Defect("raptor/spatial/to_readers.py", "if len(wanted) and 0 not in wanted", "if len(wanted)")),
    Wrong(f"{_SPREAD}groups_share_no_core", Defect(SPREAD, "low.__add__) for key, grid", "int) for key, grid")),
    Wrong(f"{_SPREAD}with_cores_of_their_own_all_chains_and_attentions_take_about_as_long", Defect(TOKEN_CORES, "each.best(self.shares[item], None,", "each.best(self.shares[item], self.senders(attention),")),
    Wrong("tests/test_token_cores.py::test_an_attention_passes_on_values_of_its_own_tokens", Defect(TOKEN_STAGES, "early if graph.tensors[n].image.width == product.queries", "early")),
    Wrong(f"{_SPREAD}wide_products_take_less_of_all_cores", Defect(SPREAD, "way[0] * len(way[1].xbars)", "way[0]")),
    # Tokens and images in one model
    Wrong(f"{_HYBRID}attentions_with_convolutions_between_are_not_one_beside_another", Defect(TOKEN_STAGES, "if self.chains[-1] or between or follows:", "if self.chains[-1] or not self.products:")),
    Wrong(f"{_HYBRID}convolutions_cut_a_chain", Defect(TOKEN_STAGES, "        if between:\n            self.next_stage(between)", "        if not self.products:\n            self.next_stage(between)")),
    Wrong(f"{_HYBRID}convolutions_cut_a_chain", Defect(TOKEN_STAGES, "range(before + 1, self.now + 1)", "range(before + 1, self.now)")),
    Wrong(f"{_HYBRID}attentions_that_do_not_depend_on_each_other_are", Defect(TOKEN_STAGES, "for name in node.inputs) == len(self.products)", "for name in node.inputs) <= len(self.products)")),
    Wrong(f"{_HYBRID}layers_of_tokens_without_attention_are_no_stages", Defect(TOKEN_STAGES, "if not any(found.products) or", "if not found.products or")),
    Wrong(f"{_HYBRID}groups_end_at_breaks_or_count_what_lies_within", Defect(TOKEN_CORES, "if group[0] < at < group[1])", "if group[0] <= at < group[1])")),
    Wrong(f"{_HYBRID}a_group_is_occupied_while_a_sample_is_in_other_layers", Defect(TOKEN_CORES, "[ns + stages.between_ns(group, layer_ns) for", "[ns + 0 * len(group) for")),
    Wrong(f"{_EARLY}a_function_of_turned_keys_is_one_of_the_keys[Mul]", Defect(EARLY, "isinstance(move.operator, Move) and _turns(move, graph)", "isinstance(move.operator, Move) and not _turns(move, graph)")),
    Wrong(f"{_EARLY}attention_as_pytorch_exports_it_streams[image_attention]", Defect(EARLY, "of_channels = len(given) == 1", "of_channels = False")),
    Wrong(f"{_EARLY}keys_that_are_channels_of_an_image_stay_an_image", Defect(EARLY, "axis = given.channel_axis", "given, axis = Image((given.rows, given.width, 0), 2), 2")),
    Wrong(f"{_EARLY}only_the_channels_that_are_moved_get_the_function", Defect(EARLY, "return channels if same and elements.size == len(channels) * given.pixels else None", "return np.arange(given.channels)")),
    Wrong(f"{_EARLY}others_stay_where_they_are", Defect(EARLY, "return all(o.pixels.size == 1 for o in", "return all(o.pixels.size for o in")),
    Wrong(f"{_EARLY}others_stay_where_they_are", Defect(EARLY, "if not _is_uniform(node) or node.output in others:", "if not _is_uniform(node):")),
    # Blocks of an image that are channels
    Wrong(f"{_STRIDED}blocks_are_read_where_they_are", Defect(STRIDED, "* channels + blocks.channels", "* channels + blocks.channels[::-1]")),
    Wrong(f"{_STRIDED}blocks_are_read_where_they_are[with a stride]", Defect(STRIDED, "(old.kernel, old.strides, old.pads))", "(old.kernel, old.strides, old.kernel))")),
    Wrong(f"{_STRIDED}blocks_are_read_where_they_are[columns first]", Defect(STRIDED, "        case Move(sources):\n            return", "        case Move(sources) if not len(sources):\n            return")),
    Wrong(f"{_STRIDED}others_are_read_as_they_are", Defect(STRIDED, "set(window.dilations) <= {1}", "set(window.dilations) <= {1, 2}")),
    Wrong(f"{_STRIDED}others_are_read_as_they_are", Defect(STRIDED, " or len(np.unique(taken)) < taken.size", "")),
    Wrong(f"{_STRIDED}others_are_read_as_they_are", Defect(STRIDED, "len(taken) in (1, image.pixels)", "len(taken) == image.pixels")),
    Wrong(f"{_STRIDED}others_are_read_as_they_are", Defect(STRIDED, "return blocks if np.array_equal(taken, blocks.elements(image.channels)) else None", "return blocks")),
    Wrong(f"{_STREAMS}[space_to_depth]", Defect(STRIDED, "return sources.pop() if moves and", "return sources.pop() if not moves and")),
    Wrong("tests/test_gates.py::test_gates_count_for_the_layer_behind_them", Defect(FOLLOWING, "at_readers(graph) | _of_views(graph, arch)", "at_readers(graph)")),
    Wrong("tests/test_gates.py::test_gates_count_for_the_layer_behind_them", Defect("raptor/spatial/lower_tokens.py", "if isinstance(chosen, LineUnfolding):\n                return [(cols, chosen.taker(s, part))", "if not isinstance(chosen, LineUnfolding):\n                return [(cols, chosen.taker(s, part))")),
    Wrong("tests/test_latest.py::test_a_scaled_shortcut_is_as_old_as_its_layer", Defect(LATEST, "max((waited for waited, _ in given), default=-1), number", "number, number")),
    Wrong("tests/test_latest.py::test_a_sum_is_on_the_cores_of_the_last_layer", Defect(LINES, "is not None, self.born[n]) for n in there}", "is not None, len(n)) for n in there}")),
    Wrong(f"{_STREAMS}[rope_pairs]", Defect(LAYOUTS, "elif count > 1 and channels > 1 and self.picks", "elif channels > count > 0 and not self.picks")),
    Wrong("tests/frontend/test_normalisation.py::test_norms_of_groups_whose_shapes_onnxruntime_joins_twice", Defect("raptor/frontend/canonical.py", "            _rename_generated(changed)\n", "")),
    Wrong(f"{_LAID}the_largest_element_of_a_token_is_no_sum", Defect(LAYOUTS, " - banned - others", " - banned")),
    Wrong(f"{_STREAMS}[rope_pairs]", Defect(LAYOUTS, "while before < len(known):", "while before < 0:")),
    Wrong("tests/frontend/test_functions.py::test_a_range_that_shapes_decide_is_computed", Defect("raptor/frontend/functions.py", "is_control(node) or node.op_type in _COMPUTED", "is_control(node)")),
    Wrong(f"{_STREAMS}[multi_query]", Defect("raptor/transforms/lay_out_matmuls.py", "image.channel_axis == 1 and image.rows > 1", "image.channel_axis == 1 and image.rows < 1")),
    # Sums of layers
    Wrong(f"{_SUMS}the_graph_computes_the_same[image-1-2]", Defect(SUMS, "channels % weights.shape[1], channels] += term.factor", "channels % weights.shape[1], channels] = term.factor")),
    Wrong(f"{_SUMS}the_graph_computes_the_same[-2-1]", Defect(SUMS, "t * window.dilations[d] - window.pads[d]", "t * window.dilations[d]")),
    Wrong(f"{_SUMS}a_difference_with_factors_is_one_layer", Defect(SUMS, "-factor if function == \"sub\" else factor", "factor")),
    Wrong(f"{_SUMS}a_difference_with_factors_is_one_layer", Defect(SUMS, "operand.pixels[0, 0] * own", "operand.pixels[0, 0]")),
    Wrong(f"{_SUMS}what_is_read_elsewhere_stays", Defect(SUMS, "or self.uses[name] == 1", "or self.uses[name]")),
    Wrong(f"{_SUMS}a_factor_of_another_tensor_keeps_the_outer_sum", Defect(SUMS, "if not groups or _is_plain(groups[0]):", "if len(groups) < 9:")),
    Wrong(f"{_SUMS}the_mean_of_a_norm_is_no_layer_of_the_sum", Defect(SUMS, " and not is_mean(self.graph, node)", "")),
    Wrong(f"{_SUMS}weights_that_are_too_large_together_stay_apart", Defect(SUMS, "(abs(values) < LARGEST)", "(abs(values) < 2 * LARGEST)")),
    Wrong(f"{_SUMS}a_stored_decision_must_name_the_first_layer_of_the_sum", Defect(SUMS, "layers.get(layer.output) == JoinedLayer(first.output)", "layers.get(layer.output)")),
    Wrong(f"{_STREAMS}[mix_ffn]", Defect(LINES, "for y, lead in enumerate(leads):\n            found.setdefault(places[lead], []).append(y)", "for y, _ in enumerate(leads):\n            found.setdefault(places[leads[0]], []).append(y)")),
    Wrong(f"{_STREAMS}[linear_attention]", Defect(LAYOUTS, "taken, wanted = sources >= 0,", "taken, wanted = sources >= -1,")),
    Wrong(f"{_STREAMS}[linear_attention]", Defect(LAYOUTS, "self.image(name).elements < elements or", "self.image(name).elements != elements or")),
    Wrong("tests/test_lines.py::test_what_follows_a_shortcut_is_counted_where_the_layers_that_it_passes_by_end[a t]", Defect(FOLLOWING, "owners[node.output] = owners[lead]", "owners[node.output] = owners[given[0]]")),
    Wrong(f"{_SPREAD}the_work_of_a_block_belongs_to_its_layers", Defect(LATEST, "found[node.output] = given[0]", "found[node.output] = number, number")),
    Wrong("tests/test_lines.py::test_blocks_of_a_dilated_line[1-False-wanted0]", Defect(UNFOLDED, "axis_of(window, -1).runs_of(outs)", "(input_range(window, outs),)")),
    Wrong(_COUNTED, Defect(UNFOLDED, "(i, len(range(i, last, period)))", "(i, 1)")),
    Wrong(_COUNTED, Defect(UNFOLDED, "count - 1) - period", "count)")),
    Wrong(_COUNTED, Defect(UNFOLDED, "period = modulus // math.gcd(step, modulus)", "period = 1")),
    Wrong(_COUNTED, Defect(UNFOLDED, "(end - begin, begin * axis.stride % axis.spread)", "(end - begin)")),
    Wrong(_COUNTED, Defect(UNFOLDED, "first, last = axis.pad + margin", "first, last = 0")),
    Wrong("tests/test_lines.py::test_a_plan_of_a_signal_costs_by_its_length", Defect(LOADERS, "total += alike * count", "total += count")),
    Wrong("tests/test_lines.py::test_lines_of_a_dilated_image", Defect(UNFOLDED, "if not clipped or _is_inside(window, out))", "if True)")),
    Wrong("tests/test_lines.py::test_lines_of_a_dilated_image", Defect(UNFOLDED, "share *= sum(0 <= out < size for out in met)", "share *= sum(0 <= out for out in met)")),
    Wrong(f"{_STREAMS}[atrous]", Defect(LOADERS, "if share_inside(window) < WASTEFUL", "if share_inside(window) < 0")),
    Wrong(f"{_SPREAD}many_partial_sums_are_added_in_bundles", Defect(UNFOLDED, "math.isqrt(groups)", "1")),
    Wrong(f"{_SPREAD}a_core_twice_in_a_segment_is_refused", Defect(CHECKED, "len(set(own)) < len(own)", "len(own) < 0")),
    Wrong(f"{_SPREAD}a_core_with_other_matrices_for_another_segment_is_refused", Defect(CHECKED, "matrices) != matrices", "matrices) is None")),
    Wrong(f"{_SPREAD}the_report_counts_copies_and_not_segments", Defect(REPORT, "// of_core", "// 1")),
    # Neighbours that share cores, and cores that go where a sample waits
    Wrong(_BUSIEST, Defect(NEIGHBOURS, "factor * (first.core_ns + second.core_ns)", "factor * max(first.core_ns, second.core_ns)")),
    Wrong(_BUSIEST, Defect(NEIGHBOURS, "quick and first.xbars + second.xbars <= xbars", "quick and first.xbars <= xbars")),
    Wrong(_BUSIEST, Defect(NEIGHBOURS, "max(first.cores, second.cores), factor", "min(first.cores, second.cores), factor")),
    Wrong(_BUSIEST, Defect(NEIGHBOURS, "ends.append((best[i - 1], pairs", "ends.append((best[i], pairs")),
    Wrong(_BUSIEST, Defect(NEIGHBOURS, "min(found, key=lambda f: f[0], default=None)", "max(found, key=lambda f: f[0], default=None)")),
    Wrong(_BUSIEST, Defect(NEIGHBOURS, "found is not None and found.cores <= cores", "found is not None")),
    Wrong(_BUSIEST, Defect(NEIGHBOURS, "first += option.cores", "first += 1")),
    Wrong(f"{_NEIGHBOURS}cores_that_are_left_go_to_a_pair", Defect(NEIGHBOURS, "at=grow(found.fronts, found.at, cores - found.cores)", "at=found.at")),
    Wrong(f"{_NEIGHBOURS}a_pair_must_gain_more_than_its_factor", Defect(NEIGHBOURS, "factor * (first.core_ns", "(first.core_ns")),
    Wrong(f"{_NEIGHBOURS}a_pair_must_be_worth_its_waiting", Defect(NEIGHBOURS, "most_ns = WORTH_SHARING * ", "most_ns = ")),
    Wrong(f"{_NEIGHBOURS}a_layer_reads_those_before_it", Defect(NEIGHBOURS, "= read, frozenset([filter_key(node)])", "= read, read | {filter_key(node)}")),
    Wrong(f"{_NEIGHBOURS}layers_side_by_side_share_no_cores", Defect(NEIGHBOURS, "for a, b in pairwise(keys) if a in read.get(b, ())", "for a, b in pairwise(keys)")),
    Wrong(f"{_NEIGHBOURS}a_pair_has_one_copy_of_each_matrix", Defect(NEIGHBOURS, "replace(plan.grid, copies=1)", "replace(plan.grid, step=1)")),
    Wrong(f"{_NEIGHBOURS}lines_wait_for_lines_and_cores", Defect(PIPELINE, "first = max((line for line, _", "first = max((line + 1 for line, _")),
    Wrong(f"{_NEIGHBOURS}what_works_on_all_lines_waits_for_the_last", Defect(PIPELINE, "return 0, given - 1", "return 1, 0")),
    Wrong(f"{_NEIGHBOURS}a_pair_takes_as_long_as_both_layers", Defect(PIPELINE, "= option.core_ns\n", "= plan.core_ns\n")),
    Wrong(_EXCHANGE, Defect(PIPELINE, "gain.cores + m.cores <= free", "gain.cores + m.cores <= free + 1")),
    Wrong(_EXCHANGE, Defect(PIPELINE, "if gain.cores <= free:", "if gain.cores <= 2 * free:")),
    Wrong(f"{_NEIGHBOURS}the_latency_moves_cores", Defect(PIPELINE, "best, moves = min(", "best, moves = max(")),
    Wrong(f"{_NEIGHBOURS}neighbours_share_cores_of_a_chip", Defect(ROWS, "if knobs.neighbours:", "if knobs.neighbours < 0:")),
    Wrong(f"{_NEIGHBOURS}the_latency_moves_cores", Defect(ROWS, "if knobs.latency > 1:", "if knobs.latency < 0:")),
    # Blocks of networks that stream
    Wrong(f"{_STREAMS}[gmlp]", Defect(LAYOUTS, "if k not in known and self.takes(k, n)})", "if k not in known and self.takes(k, n) and n == self.image(node.inputs[0]).elements // count})")),
    Wrong(f"{_STREAMS}[anchors]", Defect(LAYOUTS, "if isinstance(node.operator, Move)]\n        before", "if isinstance(node.operator, Move) and len(node.inputs) == 1]\n        before")),
    Wrong(f"{_STREAMS}[yolo_head]", Defect(LAYOUTS, "_piece(before, after, sources)) > 1", "_piece(before, after, sources)) == before.channels")),
    Wrong(f"{_LAID}pieces_of_pixels_are_tokens_in_the_lines_of_the_image", Defect(LAYOUTS, "channels, _lines(before, after, sources, channels)", "channels, 1")),
    Wrong(f"{_STREAMS}[yolo_head]", Defect(LAYOUTS, "key in self.odd or (key in self.fixed and not _is_last(image))", "key in self.odd")),
    Wrong(f"{_STREAMS}[vit_mean]", Defect(LAYOUTS, "if given in changed and self.is_over_tokens(n, known[given])}", "if given is None}")),
    Wrong(f"{_STREAMS}[sentence]", Defect(LAYOUTS, "case ChannelSum() if self.image(", "case ChannelSum() if None and self.image(")),
    Wrong(f"{_STREAMS}[stat_pool]", Defect(LAYOUT, "as pool if window.is_over_all and", "as pool if None and")),
    Wrong(f"{_STREAMS}[stat_pool]", Defect(POOLS, "size = math.isqrt(len(pixels))", "size = len(pixels)")),
    Wrong(f"{_STREAMS}[seg_argmax]", Defect(AXES, 'if function == "max":', "if not function:")),
    Wrong(f"{_STREAMS}[pointnet]", Defect(SIGNALS, "found.add(node.output)", "found |= {node.output} if node.operator.window.tap_count > 1 else set()")),
    Wrong(f"{_STREAMS}[upscaled]", Defect(LOADERS, "line_ns + after.core_ns(1 / len(cols), 1, widths)", "line_ns")),
    Wrong(f"{_STREAMS}[mixer]", Defect(FOLLOWING, "= {name: ((name, graph.tensors[name].image.channels),) for name in graph.inputs}", "= {}")),
    Wrong(f"{_STREAMS}[mixer]", Defect(FOLLOWING, "if isinstance(node.operator, ChannelSum | Softmax):", "if False:")),
    Wrong("tests/test_lines.py::test_work_on_an_input_alone_is_done_where_it_is_loaded", Defect(FOLLOWING, "if owners[name][0][0] not in graph.inputs] or given", "if name] or given")),
    Wrong(f"{_STREAMS}[anchor_free]", Defect(CUT_LINES, "for n in range(MOST_LINES, 0, -1)", "for n in range(1, 0, -1)")),
    Wrong(f"{_LAID}lines_stay_that_have_no_width_in_common_with_an_image[15]", Defect(CUT_LINES, "if width >= FEWEST else", "if width else")),
    Wrong(f"{_LAID}the_values_stay[anchor_free]", Defect(CUT_LINES, "smallest(full.reshape(", "smallest(full[:, ::-1].reshape(")),
    Wrong(f"{_LAID}the_values_stay[sentence]", Defect(LAYOUT, "and operator.factor != 1:", "and operator.factor == 1:")),
    Wrong(f"{_STREAMS}[seg_argmax]", Defect(AXES, "for n in (0, channels - half))", "for n in (0, half - 1))")),
    Wrong(f"{_STREAMS}[autoencoder]", Defect(ROWS, "spare is not None and _is_at_once(filter_):", "spare is not None and wide:")),
    # Layers that are one
    Wrong(f"{_JOINED}the_graph_computes_the_same", Defect(JOINED, "first += branch.channels", "first += 1")),
    Wrong(f"{_JOINED}the_graph_computes_the_same", Defect(JOINED, "if len({_function(node) for node in step}) > 1)", "if len(step) < 1)")),
    Wrong(f"{_JOINED}the_graph_computes_the_same", Defect(JOINED, "(1, 1, branch.channels)", "(1, 1, branch.channels))[..., ::-1] + np.zeros((1, 1, branch.channels)")),
    Wrong(f"{_JOINED}branches_of_one_image_may_be_one", Defect(JOINED, "groups[branch.filter.inputs, branch.filter.operator.window, ", "groups[branch.filter.inputs, ")),
    Wrong(f"{_JOINED}a_core_has_room_for_all_columns", Defect(JOINED, "if sum(xbars) <= arch.xbars_per_core and", "if")),
    Wrong(f"{_JOINED}layers_that_do_not_bind_stay_apart", Defect(DECIDE, "interval_ns <= WORTH_JOINING * least_ns:", "interval_ns:")),
    Wrong(f"{_JOINED}a_stored_decision_that_joins_what_differs_is_refused", Defect(CHECKED, "isinstance(layer, JoinedLayer) and key in left", "isinstance(layer, OnVectorUnit) and key in left")),
    # Paces by default, and work that is evened out
    Wrong(f"{_PACE}[fields4-products x4]", Defect(PACES, "crossbars_ns(arch) > SLOWER *", "crossbars_ns(arch) < SLOWER *")),
    Wrong(f"{_PACE}[fields1-bench]", Defect(PACES, "if not is_small(graph):", "if False:")),
    Wrong(f"{_EVEN}work_moves_only_if_a_schedule_finds_that_better[0]", Defect(EVEN, "return min(works,", "return max(works,")),
    Wrong(f"{_EVEN}the_least_limit_occupies_cores_for_less_time", Defect(EVEN, "tried.busiest_ns <= found.busiest_ns", "tried.busiest_ns < 0")),
    Wrong(f"{_EVEN}the_least_limit_occupies_cores_for_less_time", Defect(EVEN, "(last_ns - first_ns <= limit_ns) & (", "(")),
    # Work at its first readers, and relays
    Wrong(f"{_RELAYS}copies", Defect(COPIES, "if at >= step or op.at > first", "if op.at > first")),
    Wrong(f"{_RELAYS}copies", Defect(COPIES, "return found if alike else None", "return found")),
    Wrong(f"{_RELAYS}copies", Defect(COPIES, "op.first + first - op.at, at", "op.first, at")),
    Wrong(f"{_FIRST}it_stays_if_its_own_core_reads_it_soon", Defect(RELAYS, "(own_ns > first_ns + WORTH * times.busiest_ns)", "(own_ns > first_ns)")),
    Wrong(f"{_FIRST}it_stays_if_its_own_core_does_not_read_it", Defect(RELAYS, "np.full(len(cores), -np.inf)", "np.full(len(cores), np.inf)")),
    Wrong(f"{_FIRST}it_goes_to_the_first_of_its_readers", Defect(RELAYS, "far[made] & (at_ns == first_ns[made])", "far[made]")),
    Wrong(f"{_FIRST}what_belongs_to_its_core_stays", Defect(RELAYS, "far = movable(partition) & ", "far = ")),
    Wrong(f"{_FIRST}what_belongs_to_its_core_stays[copy]", Defect(MOVES, "found[flow.op_compute[flow.is_form(Copy)]] = False", "found[:0] = False")),
    Wrong(f"{_FIRST}what_belongs_to_its_core_stays[matrix]", Defect(MOVES, "[not compute.matrices for", "[True for")),
    Wrong(f"{_FIRST}what_belongs_to_its_core_stays[shared]", Defect(MOVES, "makers[flow.op_result] > 1", "makers[flow.op_result] > 9")),
    Wrong(f"{_RELAYS}what_has_moved_is_relayed_from_there", Defect(RELAYS, "    if near:", "    if not near:")),
    Wrong(f"{_RELAYS}an_output_of_some_states", Defect(TOKENS, "if node.output in self.readers or any(", "if node.output or any(")),
    # What is replayed
    Wrong(f"{_REFINE}a_wrong_record_is_refused", Defect(REFINE, "if records.lowering != lowering_digest(lowered):", "if not records.lowering:")),
    Wrong(f"{_REFINE}a_wrong_record_is_refused", Defect(MOVES, "if not end <= move.first < move.stop <= count:", "if not move.first < move.stop <= count:")),
    Wrong(f"{_REFINE}constants_need_free_crossbars", Defect("raptor/spatial/make_constants.py", "if needed > free:", "if needed < 0:")),
    Wrong(f"{_REFINE}a_value_cannot_be_relayed_before_it_is_made", Defect(RELAYS, "if len(order) < len(rows):", "if not order:")),
    Wrong(f"{_REFINE}records_make_the_same_program_again", Defect(REFINE, 'if records.balanced:\n        yield', 'if records.near:\n        yield')),
    Wrong(f"{_REFINE}without_a_refinement_it_is_decided_anew", Defect("raptor/spatial/choose_order.py", "if aim == STORED or not", "if not")),
    Wrong(f"{_DECISIONS}a_mapping_for_other_sizes_is_refused", Defect(STORED, '"cell_bits": (stored.cell_bits, arch.cell_bits),', "")),
    Wrong(f"{_DECISIONS}a_mapping_for_other_sizes_is_refused", Defect(STORED, '"cores": (stored.cores, arch.core_count),', "")),
    Wrong(f"{_DECISIONS}a_mapping_for_another_model_of_the_same_layers_is_refused", Defect(STORED, "if stored.model != model_digest(graph):", "if not stored.model:")),
    Wrong(f"{_DECISIONS}a_mapping_for_a_chip_of_another_speed_replays_with_a_note", Defect(STORED, "if stored.target != target_digest(arch):", "if not stored.target:")),
    # What the user said
    Wrong(f"{_FIGURES}[lenet5-raptor]", Defect(COMPILER, "Chosen(STRATEGIES[options.mapping],", 'Chosen(STRATEGIES["rows"],')),
    Wrong(f"{_DECISIONS}a_mapping_for_other_sizes_is_refused", Defect(CHIP, 'matrix["cell_precision"] = options.cell_bits', "pass")),
    Wrong("tests/test_network.py::test_the_own_table_is_in_the_output_and_costs_what_it_says", Defect(CHIP, "return None if _has_bytes(path, mesh) else", "return None if path else")),
    Wrong("tests/test_options.py::test_every_option_acts_or_is_refused_beside_every_other[report]", Defect(COMMAND, "gather(out, arch, validate=validate", "gather(out, None, validate=validate")),
    # What is written, where models are cut, what chips exchange
    Wrong("tests/rounds/test_rounds.py::test_equal_rounds_are_written_once", Defect(WRITES, "held.update(item for group in written for", "held.update(item for group in groups[:0] for")),
    Wrong("tests/rounds/test_rounds.py::test_what_is_read_later_waits", Defect(UNITS, "*made, *self.crossing(last)", "*made")),
    Wrong("tests/rounds/test_cuts.py::test_the_best_of_all_cuts_of_300_sequences", Defect(CUTS, "if promised > best.get(count, (math.inf,))[0] * _ROUNDING:", "if count in best:")),
    Wrong(f"{_STAGES}the_best_of_all_stages", Defect(STAGES, "(together(total, least(first, last)), used", "(together(total, 2 * least(first, last)), used")),
    Wrong(f"{_STAGES}the_best_of_all_stages", Defect(STAGES, "if own <= limit and own < math.inf:", "if own < math.inf:")),
    Wrong(f"{_STAGES}dear_links_get_a_stage_on_each_chip", Defect(STAGED, "partial(add, number * self.arch.cores_per_chip)", "partial(add, 0)")),
    Wrong(f"{_STAGES}links_that_are_too_dear_are_not_used", Defect(STAGED, "if times.link_ns <= times.alone_ns:", "if times.link_ns >= times.alone_ns:")),
    Wrong(f"{_STAGES}each_range_is_looked_at_once", Defect(STAGED, "if (first, last) not in self._stages:", "if (first, last):")),
    Wrong(f"{_CROSSING}chips_begin_where_the_busiest_link_has_least_to_carry", Defect(NUMBERS, "return min(way for first", "return max(way for first")),
    Wrong(f"{_CROSSING}a_transformer_crosses_a_link_with_little_more_than_its_tokens", Defect(NUMBERS, "enumerate(dict.fromkeys(_cores(graph, *found)))", "enumerate(sorted({*_cores(graph, *found)}))")),
    Wrong(f"{_CROSSING}the_estimate_is_what_cores_exchange", Defect(EXCHANGE, "self.read(core, right, rows)", "self.read(core, right)")),
    Wrong("tests/chips/test_chips.py::test_the_table_by_hand", Defect(LINKS, "MEMORY_NS + chip * chips.link_ns", "MEMORY_NS + chip")),
    Wrong("tests/chips/test_chips.py::test_the_table_by_hand", Defect(LINKS, "FLIT_PJ + apart * chips.link_pj", "FLIT_PJ + chips.link_pj")),
    Wrong("tests/chips/test_chips.py::test_flits_over_a_link_by_hand", Defect("validator/simulate/links.py", "np.maximum(source, to) > k)", "np.maximum(source, to) > k + 1)")),
    # What is chosen
    Wrong("tests/test_plans.py::test_slower_plans_that_need_more_cores_are_left_out", Defect(PLANS, "plan.core_ns < front[-1].core_ns", "plan.core_ns > front[-1].core_ns")),
    Wrong(f"{_FIGURES}[googlenet-rows]", Defect(KNOBS, "products: float = 1.0", "products: float = 2.0")),
    Wrong(_PASSES, Defect(KNOBS, "patience_ns: float = 1_500", "patience_ns: float = 3_000")),
    Wrong("tests/test_lines.py::test_loaders_are_no_more_than_the_readers[20-5]", Defect(LOADERS, "arch.usable_cores * READING", "arch.usable_cores")),
    Wrong("tests/test_lines.py::test_loaders_share_the_port_of_global_memory", Defect(LOADERS, "pieces * message, port_ns)", "pieces * message, 0)")),
    Wrong("tests/test_spread_dense.py::test_a_slow_layer_is_spread_over_cores", Defect(ROWS, "= spread or (whole, used, placed)", "= whole, used, placed")),
    Wrong("tests/test_spread_dense.py::test_narrow_matrices_of_the_last_outputs[48]", Defect("raptor/mapping/fully_connected.py", "dense_ns(matrices, way, arch, tile), default=None)", "dense_ns(matrices, way, arch, tile))")),
    Wrong("tests/test_recurrent_mapping.py::test_a_layer_has_no_more_copies_than_steps", Defect("raptor/mapping/recurrent.py", "min(copies, self.counts[key]) - 1", "copies - 1")),
    Wrong("tests/test_spread_dense.py::test_lenet_is_bound_by_its_convolutions[16]", Defect(ROWS, "(spread is None or _dense_cost(task, *shared) <= _dense_cost(task, *apart))", "True")),
    Wrong(f"{_FORMS}products_and_layers_are_computed_by_line[one head]", Defect(SIGNALS, "found = _multiplied(graph)", "found = set[str]()")),
    Wrong(f"{_FORMS}products_and_layers_are_computed_by_line[of an image]", Defect(PARTS, "return (tokens or operand) and", "return tokens and")),
    Wrong(f"{_FORMS}products_and_layers_are_computed_by_line[a head wider than a crossbar]", Defect(PARTS, "if keeps or isinstance(node.operator, Filter):", "if keeps:")),
    Wrong(f"{_FORMS}a_softmax_over_the_channels_of_a_signal", Defect(SIGNALS, "Concat | Elementwise | Softmax | ChannelSum", "Concat | Elementwise | ChannelSum")),
    Wrong("tests/test_lines_with_relu.py::test_a_layer_with_a_relu_is_computed_by_line[tokens-20]", Defect(PARTS, "if operator.key:", "if operator.key or operator.relu:")),
    Wrong(f"{_FIGURES}[shufflenet_v2-raptor]", Defect(VECTOR_UNIT, "if _is_faster_as_vectors(f, chips[key])}", "if not _is_faster_as_vectors(f, chips[key])}")),
    Wrong("tests/transforms/test_fold_relu.py::test_a_single_product_clips_by_itself", Defect(FOLD, 'Map("relu") if _single_product', 'Map("relu") if not _single_product')),
    Wrong(f"{_FIGURES}[lenet5-rows]", Defect(PLACES, "if isinstance(decision.flow, ByLine) and graph.computes:", "if not graph:")),
    Wrong(f"{_FIGURES}[lenet5-rows]", Defect(SCHEDULE, "if not isinstance(flow, ByLine) or not count:", "if flow or count:")),
    Wrong(f"{_FIGURES}[lenet5-rows]", Defect(ALLOCATE, "return replace(program, cores={i: _reuse_on_core(core)", "return program or replace(program, cores={i: _reuse_on_core(core)")),
)  # fmt: skip

SECONDS = 300


def is_seen(wrong: Defect) -> bool:
    """Returns True if the test fails once the decision is planted."""

    def run() -> None:
        plant(wrong)
        for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "blocks")]:
            del sys.modules[name]  # they still hold the old modules
        usual = ["-q", "-x", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        options = [*usual, "-m", "slow or not slow"]
        sys.exit(pytest.main([*options, "--rootdir", str(ROOT), str(ROOT / wrong.check)]))

    outcome = isolated(run, seconds=SECONDS)
    if outcome.status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise BrokenError(f"{wrong}: status {outcome.status}: {outcome.out[-500:]} {outcome.err[-500:]}")
    return outcome.status == pytest.ExitCode.TESTS_FAILED


def case(rng: Draw, _: Path) -> str:
    """Plants one wrong decision and runs the test that must see it."""
    wrong = _SHUFFLED[rng.number % len(WRONG_DECISIONS)]
    if not is_seen(wrong):
        raise BrokenError(f"{wrong.check} does not see {wrong}")
    return "seen by a test"


_SHUFFLED = Random("decisions").sample(WRONG_DECISIONS, len(WRONG_DECISIONS))


def prepare() -> None:
    """Checks that every wrong decision fits the code."""
    for wrong in WRONG_DECISIONS:
        wrong.tree()


DECISIONS = Part(
    "decisions",
    "wrong decisions planted in the compiler, all values right",
    short=4,
    long=len(WRONG_DECISIONS),
    case=case,
    prepare=prepare,
    first_seed=seed_of_commit,
)
