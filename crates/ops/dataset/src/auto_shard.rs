//! AutoShardDataset: a dataset's graph rewritten so that each worker reads its part (TensorFlow:
//! `core/grappler/optimizers/data/auto_shard.cc`).

use crate::common::{Made, dataset, is_any, make, number, positive};
use crate::options::through_of;
use ferroflow_base::{Code, Result, invalid_argument, not_found};
use ferroflow_model::proto::attr_value::{ListValue, Value};
use ferroflow_model::proto::{
    AttrValue as AttrProto, FunctionDef, GraphDef, NodeDef, TensorShapeProto,
};
use ferroflow_model::tensor_to_attr_proto;
use ferroflow_opdef::{AttrValue, FUNCTION_LIBRARY, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_resources::dataset::Dataset;
use ferroflow_tensor::{Bytes, DType, Tensor};
use prost::Message;
use std::collections::{BTreeSet, HashMap};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "AutoShardDataset",
        "input_dataset: variant, num_workers: int64, index: int64 -> handle: variant | \
         auto_shard_policy: int = 0; output_types: list(type) >= 1; output_shapes: \
         list(shape) >= 1; num_replicas: int = 0",
    )
    .shape(ferroflow_functors::shapes::scalar)
    .kernel(auto_shard),
    Op::new(
        "ExperimentalAutoShardDataset",
        "input_dataset: variant, num_workers: int64, index: int64 -> handle: variant | \
         auto_shard_policy: int = 0; output_types: list(type) >= 1; output_shapes: \
         list(shape) >= 1",
    )
    .shape(ferroflow_functors::shapes::scalar)
    .kernel(auto_shard),
];

/// Policies (TensorFlow: `core/framework/dataset_options.proto`).
const OFF: i64 = -1;
const AUTO: i64 = 0;
const FILE: i64 = 1;
const DATA: i64 = 2;
const HINT: i64 = 3;

/// Datasets that read files.
const READERS: &[&str] = &[
    "ArrayRecordDataset",
    "FixedLengthRecordDataset",
    "RecordIODataset",
    "SSTableDataset",
    "TextLineDataset",
    "TFRecordDataset",
];
const MULTIPLE_INPUTS: &[&str] = &["ConcatenateDataset", "ZipDataset"];
/// Nodes that pass elements of their first input on, as far as sharding goes.
const PASS_THROUGH: &[&str] = &[
    "_Retval",
    "AssertNextDataset",
    "BatchDataset",
    "CacheDataset",
    "ExperimentalMapAndBatchDataset",
    "ExperimentalParseExampleDataset",
    "ExperimentalRebatchDataset",
    "FilterDataset",
    "FinalizeDataset",
    "Identity",
    "MapAndBatchDataset",
    "MapDataset",
    "MaxIntraOpParallelismDataset",
    "ModelDataset",
    "OptimizeDataset",
    "OptionsDataset",
    "PaddedBatchDataset",
    "ParallelBatchDataset",
    "ParallelMapDataset",
    "ParseExampleDataset",
    "PrefetchDataset",
    "PrivateThreadPoolDataset",
    "ReduceDataset",
    "RebatchDataset",
    "RepeatDataset",
    "ShardDataset",
    "ShuffleAndRepeatDataset",
    "ShuffleDataset",
    "SkipDataset",
    "TakeDataset",
    "UnbatchDataset",
    "WindowDataset",
];
/// Datasets whose functions make datasets.
const WITH_FUNCTIONS: &[&str] = &[
    "ExperimentalParallelInterleaveDataset",
    "FlatMapDataset",
    "InterleaveDataset",
    "LegacyParallelInterleaveDataset",
    "ParallelInterleaveDataset",
];
const UNSHARDABLE: &[&str] = &[
    "GeneratorDataset",
    "RangeDataset",
    "SparseTensorsSliceDataset",
    "TensorDataset",
    "TensorSliceDataset",
];

fn auto_shard(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let policy = build.attrs.int("auto_shard_policy")?;
    if !matches!(policy, OFF | AUTO | FILE | DATA | HINT) {
        return Err(invalid_argument!("auto_shard_policy is invalid."));
    }
    let n_replicas = build.attrs.int("num_replicas").unwrap_or(0);
    if n_replicas < 0 {
        return Err(invalid_argument!("num_replicas should be >= 0"));
    }
    // The session sets the functions that it knows.
    let library = match build.attrs.get(FUNCTION_LIBRARY) {
        Some(AttrValue::Str(library)) => library.clone(),
        _ => Bytes::new(),
    };
    make(build, move |ctx, _| {
        let problem = "num_workers must be greater than zero.";
        let n = positive(ctx, 1, "num_workers", problem)? as i64;
        let index = number(ctx, 2, "index")?;
        if !(0..n).contains(&index) {
            return Err(invalid_argument!("index must be between 0 and {}", n - 1));
        }
        let input = dataset(ctx, 0)?;
        if policy == OFF || policy == FILE && n == 1 {
            return Ok(through_of(input));
        }
        let part = Part {
            n,
            index,
            n_replicas,
        };
        rewritten(ctx, &library, policy, part)
    })
}

/// Makes the input again, as a graph in which `part` is read.
fn rewritten(ctx: &KernelCtx, library: &[u8], policy: i64, part: Part) -> Made {
    let graphs = ctx.resources().dataset_graphs()?.clone();
    let written = graphs.local_graph_of(ctx.input(0)?, library)?;
    let graph = GraphDef::decode(&written.graph[..])
        .map_err(|e| invalid_argument!("Could not parse GraphDef: {e}"))?;
    let applied = match policy {
        AUTO => {
            let mut by_file = View::of(graph.clone(), part);
            match by_file.by_file() {
                Err(e) if e.code() == Code::NotFound => {
                    let mut by_data = View::of(graph, part);
                    by_data.by_data()?;
                    by_data
                }
                done => {
                    done?;
                    by_file
                }
            }
        }
        _ => {
            let mut view = View::of(graph, part);
            match policy {
                FILE => view.by_file()?,
                DATA => view.by_data()?,
                _ => view.by_hint()?,
            }
            view
        }
    };
    let graph = applied.graph.encode_to_vec();
    let made = graphs.dataset_of(&graph, &written.feeds, ctx.services())?;
    Ok(through_of(Dataset::of(&made)?))
}

/// Which part of the elements a worker reads.
#[derive(Clone, Copy)]
struct Part {
    n: i64,
    index: i64,
    n_replicas: i64,
}

/// A graph that is changed.
struct View {
    graph: GraphDef,
    part: Part,
    /// The number of nodes that were added.
    added: usize,
}

/// A shuffle that was removed: its node without the dataset that it read.
struct Shuffle(NodeDef);

impl View {
    fn of(graph: GraphDef, part: Part) -> View {
        View {
            graph,
            part,
            added: 0,
        }
    }

    fn find(&self, name: &str) -> Option<usize> {
        let name = name.strip_suffix(":0").unwrap_or(name);
        self.graph.node.iter().position(|node| node.name == name)
    }

    fn node(&self, i: usize) -> Result<&NodeDef> {
        let node = self.graph.node.get(i);
        node.ok_or_else(|| invalid_argument!("the dataset's graph lacks node {i}"))
    }

    /// Returns the node that is input `slot` of a node.
    fn input(&self, i: usize, slot: usize) -> Result<usize> {
        let node = self.node(i)?;
        let input = node.input.get(slot).and_then(|name| self.find(name));
        input.ok_or_else(|| not_found!("node {} has no input {slot}", node.name))
    }

    /// Returns the node whose input is the dataset.
    fn sink(&self) -> Result<usize> {
        let sink = self.graph.node.iter().position(|n| n.op == "_Retval");
        sink.ok_or_else(|| invalid_argument!("the graph has no _Retval node with a dataset"))
    }

    fn add(&mut self, mut node: NodeDef) -> String {
        node.name = format!("{}/auto_shard_{}", node.op, self.added);
        self.added += 1;
        let name = node.name.clone();
        self.graph.node.push(node);
        name
    }

    fn constant(&mut self, value: i64) -> Result<String> {
        let tensor = tensor_to_attr_proto(&Tensor::scalar(value))?;
        let attrs = [
            ("dtype", Value::Type(DType::Int64 as i32)),
            ("value", Value::Tensor(Box::new(tensor))),
        ];
        Ok(self.add(NodeDef {
            op: "Const".to_string(),
            attr: attrs.into_iter().map(attr).collect(),
            ..Default::default()
        }))
    }

    /// Has the readers of `from`, except for the node `to`, read `to` instead.
    fn redirect(&mut self, from: &str, to: &str) {
        let output = format!("{from}:0");
        for node in self.graph.node.iter_mut().filter(|n| n.name != to) {
            for input in node.input.iter_mut() {
                if *input == from || *input == output {
                    *input = to.to_string();
                }
            }
        }
    }

    /// Shards the input of node `before`.
    fn add_shard(&mut self, before: usize) -> Result<()> {
        let after = self.input(before, 0).map_err(|_| self.unwrapped(before));
        let after = self.node(after?)?.clone();
        if !after.op.contains("Dataset") {
            return Err(not_found!(
                "Unable to shard this input. You may need to wrap the inputs to your reader dataset \
                 in a TensorSliceDataset. Input node is {}",
                described(&after)
            ));
        }
        let n = self.constant(self.part.n)?;
        let index = self.constant(self.part.index)?;
        let types = ["output_types", "Toutput_types"];
        let types = types.iter().find_map(|name| after.attr.get(*name));
        let of_strings = Value::List(Box::new(ListValue {
            r#type: vec![DType::String as i32],
            ..Default::default()
        }));
        let unknown = Value::List(Box::new(ListValue {
            shape: vec![TensorShapeProto {
                unknown_rank: true,
                ..Default::default()
            }],
            ..Default::default()
        }));
        let or = |found: Option<&AttrProto>, value| {
            found.cloned().unwrap_or(AttrProto { value: Some(value) })
        };
        let attrs = [
            (
                "output_shapes".to_string(),
                or(after.attr.get("output_shapes"), unknown),
            ),
            ("output_types".to_string(), or(types, of_strings)),
            attr(("require_non_empty", Value::B(true))),
        ];
        let shard = self.add(NodeDef {
            op: "ShardDataset".to_string(),
            input: vec![after.name.clone(), n, index],
            attr: attrs.into_iter().collect(),
            ..Default::default()
        });
        self.redirect(&after.name, &shard);
        Ok(())
    }

    fn unwrapped(&self, before: usize) -> ferroflow_base::Status {
        not_found!(
            "Unable to shard this input. You may need to wrap the inputs to your reader dataset in \
             a TensorSliceDataset. Input node is that of {}",
            self.graph
                .node
                .get(before)
                .map(described)
                .unwrap_or_default()
        )
    }

    /// Removes the shuffles of kind `op` that node `i` reads, directly or not; returns the last one.
    fn remove_shuffles(&mut self, i: usize, op: &str) -> Result<Option<Shuffle>> {
        let (mut queue, mut seen) = (vec![i], BTreeSet::new());
        let mut last = None;
        while let Some(i) = queue.pop() {
            if !seen.insert(i) {
                continue;
            }
            let node = self.node(i)?.clone();
            for slot in (0..node.input.len()).rev() {
                queue.extend(self.input(i, slot).ok());
            }
            if node.op == op
                && let Some(input) = node.input.first().cloned()
            {
                self.redirect(&node.name, &input);
                last = Some(Shuffle(node));
            }
        }
        Ok(last)
    }

    /// Shards what node `i` reads, in front of shuffles.
    fn shard_source(&mut self, i: usize) -> Result<()> {
        self.add_shard(i)?;
        let mut removed = None;
        for op in ["ShuffleDataset", "ShuffleDatasetV2", "ShuffleDatasetV3"] {
            removed = self.remove_shuffles(i, op)?;
            if removed.is_some() {
                break;
            }
        }
        let Some(Shuffle(mut shuffle)) = removed else {
            return Ok(());
        };
        let after = self.input(i, 0)?;
        let after = self.node(after)?.clone();
        for name in ["output_shapes", "output_types"] {
            if let Some(value) = after.attr.get(name) {
                shuffle.attr.insert(name.to_string(), value.clone());
            }
        }
        if let Some(input) = shuffle.input.first_mut() {
            *input = after.name.clone();
        }
        let shuffle = self.add(shuffle);
        self.redirect(&after.name, &shuffle);
        Ok(())
    }

    /// Whether the function of a node has a dataset that reads files.
    fn reads_in_function(&self, node: &NodeDef, functions: &HashMap<&str, &FunctionDef>) -> bool {
        // A function may call itself.
        let (mut queue, mut seen) = (vec![node], BTreeSet::new());
        while let Some(node) = queue.pop() {
            let Some(Value::Func(f)) = node.attr.get("f").and_then(|a| a.value.as_ref()) else {
                continue;
            };
            let Some(function) = functions.get(f.name.as_str()) else {
                continue;
            };
            if !seen.insert(f.name.as_str()) {
                continue;
            }
            for inner in &function.node_def {
                if is_any(&inner.op, READERS) && !inner.input.is_empty() {
                    return true;
                }
                if is_any(&inner.op, WITH_FUNCTIONS) {
                    queue.push(inner);
                }
            }
        }
        false
    }

    /// Returns the dataset with a function that reads a slice of datasets, in front of node `i`.
    fn flat_map_of_datasets(&self, mut i: usize) -> Option<usize> {
        for _ in 0..self.graph.node.len() {
            let op = &self.node(i).ok()?.op;
            let input = self.input(i, 0).ok()?;
            if is_any(op, WITH_FUNCTIONS) {
                let source = &self.node(input).ok()?.op;
                if source == "TensorSliceDataset" || source == "TensorDataset" {
                    let values = self.input(input, 0).ok()?;
                    if self.node(values).ok()?.op == "Placeholder" {
                        return Some(i);
                    }
                }
            }
            if !is_any(op, PASS_THROUGH) {
                return None;
            }
            i = input;
        }
        None
    }

    /// Returns the only reader of a node.
    fn only_reader(&self, i: usize) -> Option<usize> {
        let name = &self.node(i).ok()?.name;
        let reads = |node: &NodeDef| {
            let inputs = node.input.iter();
            inputs
                .filter(|n| n.strip_suffix(":0").unwrap_or(n) == name)
                .count()
        };
        let nodes = self.graph.node.iter().enumerate();
        let mut readers = nodes.filter(|(_, node)| reads(node) > 0);
        let (reader, node) = readers.next()?;
        (readers.next().is_none() && reads(node) == 1).then_some(reader)
    }

    fn by_file(&mut self) -> Result<()> {
        let mut queue = vec![self.sink()?];
        // Names stay, positions do too: nodes are added at the end.
        for _ in 0..self.graph.node.len() {
            let Some(i) = queue.pop() else {
                return Ok(());
            };
            queue.extend(self.shard_file(i)?);
        }
        match queue.is_empty() {
            true => Ok(()),
            false => Err(not_found!("Did not find a shardable source")),
        }
    }

    /// Shards by file at node `i`, or returns the nodes to look at next, the first one last.
    fn shard_file(&mut self, i: usize) -> Result<Vec<usize>> {
        let node = self.node(i)?.clone();
        if node.op == "AssertCardinalityDataset" {
            let input = self.input(i, 0)?;
            let name = self.node(input)?.name.clone();
            self.redirect(&node.name, &name);
            return Ok(vec![input]);
        }
        if is_any(&node.op, UNSHARDABLE) {
            return Err(not_found!(
                "Found an unshardable source dataset: {}",
                described(&node)
            ));
        }
        if is_any(&node.op, MULTIPLE_INPUTS) {
            let inputs = (0..node.input.len()).rev();
            return inputs.map(|slot| self.input(i, slot)).collect();
        }
        let has_function = is_any(&node.op, WITH_FUNCTIONS);
        if has_function
            && let Some(found) = self.flat_map_of_datasets(self.input(i, 0)?)
            && let Some(reader) = self.only_reader(found)
        {
            self.shard_source(reader)?;
            return Ok(Vec::new());
        }
        let passes = has_function || is_any(&node.op, PASS_THROUGH);
        let reads = passes && {
            let functions = self.graph.library.iter().flat_map(|l| &l.function);
            let functions = functions
                .filter_map(|f| Some((f.signature.as_ref()?.name.as_str(), f)))
                .collect();
            self.reads_in_function(&node, &functions)
        };
        if reads || is_any(&node.op, READERS) {
            self.shard_source(i)?;
            return Ok(Vec::new());
        }
        if !passes {
            return Err(not_found!(
                "Did not find a shardable source, walked to a node which is not a dataset: {}. \
                 Consider either turning off auto-sharding or switching the auto_shard_policy to \
                 DATA to shard this dataset. You can do this by creating a new `tf.data.Options()` \
                 object then setting `options.experimental_distribute.auto_shard_policy = \
                 AutoShardPolicy.DATA` before applying the options object to the dataset via \
                 `dataset.with_options(options)`.",
                described(&node)
            ));
        }
        Ok(vec![self.input(i, 0)?])
    }

    /// Shards in front of what only prefetches or sets options.
    fn by_data(&mut self) -> Result<()> {
        let mut before = self.sink()?;
        let mut input = self.input(before, 0)?;
        let ends = ["PrefetchDataset", "OptionsDataset", "FinalizeDataset"];
        while ends.contains(&self.node(input)?.op.as_str()) {
            before = input;
            input = self.input(input, 0)?;
        }
        if self.node(input)?.op == "RebatchDatasetV2" {
            self.legacy_rebatch(input)?;
        }
        self.add_shard(before)
    }

    /// Makes a RebatchDatasetV2 a RebatchDataset, whose batches are divided by replicas.
    fn legacy_rebatch(&mut self, i: usize) -> Result<()> {
        let n_replicas = self.part.n_replicas;
        if n_replicas < 1 {
            return Err(invalid_argument!(
                "Cannot rewrite RebatchDatasetV2 to legacy RebatchDataset with invalid num_replicas \
                 argument. `num_replicas` is {n_replicas}, but expected to be >= 1."
            ));
        }
        let n = self.constant(n_replicas)?;
        let Some(node) = self.graph.node.get_mut(i) else {
            return Ok(());
        };
        node.op = "RebatchDataset".to_string();
        node.input.truncate(1);
        node.input.push(n);
        let (name, value) = attr(("use_fallback", Value::B(true)));
        node.attr.insert(name, value);
        if let Some(AttrProto {
            value: Some(Value::List(list)),
        }) = node.attr.get_mut("output_shapes")
        {
            let firsts = list.shape.iter_mut().filter(|s| !s.unknown_rank);
            firsts
                .filter_map(|s| s.dim.first_mut())
                .for_each(|dim| dim.size = -1);
        }
        Ok(())
    }

    /// Numbers the shards that were left to distribution.
    fn by_hint(&mut self) -> Result<()> {
        let n = self.constant(self.part.n)?;
        let index = self.constant(self.part.index)?;
        for i in 0..self.graph.node.len() {
            if self.node(i)?.op != "ShardDataset" {
                continue;
            }
            let count = self.node(self.input(i, 1)?)?;
            let value = count.attr.get("value").and_then(|a| a.value.as_ref());
            let is_hint = match value {
                Some(Value::Tensor(t)) => {
                    let t = ferroflow_model::tensor_from_proto(t, None)?.get()?;
                    ferroflow_functors::indices::int(&t) == Some(crate::rounds::SHARD_HINT)
                }
                _ => false,
            };
            let Some(node) = self.graph.node.get_mut(i).filter(|_| is_hint) else {
                continue;
            };
            for (slot, name) in [(1, &n), (2, &index)] {
                if let Some(input) = node.input.get_mut(slot) {
                    input.clone_from(name);
                }
            }
            let (name, value) = attr(("require_non_empty", Value::B(true)));
            node.attr.insert(name, value);
        }
        Ok(())
    }
}

fn attr((name, value): (&str, Value)) -> (String, AttrProto) {
    (name.to_string(), AttrProto { value: Some(value) })
}

/// Returns how an error names a node.
fn described(node: &NodeDef) -> String {
    format!("name: \"{}\" op: \"{}\"", node.name, node.op)
}
