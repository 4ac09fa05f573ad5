//! Elements by key: GroupByWindowDataset, GroupByReducerDataset, UniqueDataset (TensorFlow:
//! `core/kernels/data/experimental/{group_by_window,group_by_reducer,unique}_dataset_op.cc`).

use crate::common::{Input, Spec, dataset, function, function_name, make, n_of, next_of, some};
use crate::sources::window_of;
use ferroflow_base::{Result, invalid_argument, ordered_map};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, Op, OpKernel, StepServices};
use ferroflow_resources::dataset::{
    CapturedFunction, Components, Dataset, DatasetIterator, INFINITE, Source, State, UNKNOWN,
    returned_dataset,
};
use ferroflow_tensor::{DType, Tensor};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "GroupByWindowDataset",
        "input_dataset: variant, key_func_other_arguments: list(Tkey_func_other_arguments), \
         reduce_func_other_arguments: list(Treduce_func_other_arguments), \
         window_size_func_other_arguments: list(Twindow_size_func_other_arguments) -> handle: \
         variant | key_func: func; reduce_func: func; window_size_func: func; \
         Tkey_func_other_arguments: list(type) >= 0; Treduce_func_other_arguments: list(type) \
         >= 0; Twindow_size_func_other_arguments: list(type) >= 0; output_types: list(type) \
         >= 1; output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(group_by_window),
    Op::new(
        "ExperimentalGroupByWindowDataset",
        "input_dataset: variant, key_func_other_arguments: list(Tkey_func_other_arguments), \
         reduce_func_other_arguments: list(Treduce_func_other_arguments), \
         window_size_func_other_arguments: list(Twindow_size_func_other_arguments) -> handle: \
         variant | key_func: func; reduce_func: func; window_size_func: func; \
         Tkey_func_other_arguments: list(type) >= 0; Treduce_func_other_arguments: list(type) \
         >= 0; Twindow_size_func_other_arguments: list(type) >= 0; output_types: list(type) \
         >= 1; output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(group_by_window),
    Op::new(
        "GroupByReducerDataset",
        "input_dataset: variant, key_func_other_arguments: list(Tkey_func_other_arguments), \
         init_func_other_arguments: list(Tinit_func_other_arguments), \
         reduce_func_other_arguments: list(Treduce_func_other_arguments), \
         finalize_func_other_arguments: list(Tfinalize_func_other_arguments) -> handle: \
         variant | key_func: func; init_func: func; reduce_func: func; finalize_func: func; \
         Tkey_func_other_arguments: list(type) >= 0; Tinit_func_other_arguments: list(type) \
         >= 0; Treduce_func_other_arguments: list(type) >= 0; Tfinalize_func_other_arguments: \
         list(type) >= 0; output_types: list(type) >= 1; output_shapes: list(shape) >= 1 | \
         stateful",
    )
    .shape(shapes::scalar)
    .kernel(group_by_reducer),
    Op::new(
        "ExperimentalGroupByReducerDataset",
        "input_dataset: variant, key_func_other_arguments: list(Tkey_func_other_arguments), \
         init_func_other_arguments: list(Tinit_func_other_arguments), \
         reduce_func_other_arguments: list(Treduce_func_other_arguments), \
         finalize_func_other_arguments: list(Tfinalize_func_other_arguments) -> handle: \
         variant | key_func: func; init_func: func; reduce_func: func; finalize_func: func; \
         Tkey_func_other_arguments: list(type) >= 0; Tinit_func_other_arguments: list(type) \
         >= 0; Treduce_func_other_arguments: list(type) >= 0; Tfinalize_func_other_arguments: \
         list(type) >= 0; output_types: list(type) >= 1; output_shapes: list(shape) >= 1 | \
         stateful",
    )
    .shape(shapes::scalar)
    .kernel(group_by_reducer),
    Op::new(
        "UniqueDataset",
        "input_dataset: variant -> handle: variant | output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1; metadata: string = ''",
    )
    .shape(shapes::scalar)
    .kernel(unique),
    Op::new(
        "ExperimentalUniqueDataset",
        "input_dataset: variant -> handle: variant | output_types: list(type) >= 1; \
         output_shapes: list(shape) >= 1",
    )
    .shape(shapes::scalar)
    .kernel(unique),
];

struct GroupByWindow {
    input: Arc<Dataset>,
    key: CapturedFunction,
    reduce: CapturedFunction,
    window_size: CapturedFunction,
}

struct WindowIterator {
    source: Arc<GroupByWindow>,
    inner: Input,
    /// Elements by key.
    groups: BTreeMap<i64, Vec<Components>>,
    sizes: BTreeMap<i64, i64>,
    /// The dataset of a full group.
    current: Option<(Arc<Dataset>, Box<dyn DatasetIterator>)>,
}

fn group_by_window(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let names = [
        function_name(build, "key_func")?,
        function_name(build, "reduce_func")?,
        function_name(build, "window_size_func")?,
    ];
    let n_key = n_of(build, "Tkey_func_other_arguments")?;
    let n_reduce = n_of(build, "Treduce_func_other_arguments")?;
    make(build, move |ctx, _| {
        let (key, reduce, end) = (1 + n_key, 1 + n_key + n_reduce, ctx.num_inputs());
        Ok(Arc::new(GroupByWindow {
            input: dataset(ctx, 0)?,
            key: function(ctx, &names[0], some(ctx, 1, key)?)?,
            reduce: function(ctx, &names[1], some(ctx, key, reduce)?)?,
            window_size: function(ctx, &names[2], some(ctx, reduce, end)?)?,
        }))
    })
}

impl Source for GroupByWindow {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(WindowIterator {
            inner: Some(self.input.iterator()?),
            source: self,
            groups: BTreeMap::new(),
            sizes: BTreeMap::new(),
            current: None,
        }))
    }

    fn cardinality(&self) -> i64 {
        match self.input.cardinality() {
            INFINITE => INFINITE,
            _ => UNKNOWN,
        }
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl WindowIterator {
    /// Iterates over what the reduce function makes of a group.
    fn flush(&mut self, key: i64, services: &StepServices) -> Result<()> {
        let group = self.groups.remove(&key).unwrap_or_default();
        let input = &self.source.input;
        let spec = Spec::new(input.dtypes.clone(), input.shapes.clone());
        let window = window_of(group, &spec);
        let args = vec![Tensor::scalar(key), window.tensor()?];
        let results = self.source.reduce.call(args, services)?;
        let dataset = returned_dataset(&results)?;
        let iterator = dataset.iterator()?;
        self.current = Some((dataset, iterator));
        Ok(())
    }

    /// Adds an element to its group; returns the key of a group that is full now.
    fn add(&mut self, element: Components, services: &StepServices) -> Result<Option<i64>> {
        let source = &self.source;
        let key = source.key.number(element.clone(), "key_func", services)?;
        let size = match self.sizes.get(&key) {
            Some(&size) => size,
            None => {
                let key_tensor = vec![Tensor::scalar(key)];
                let size = source
                    .window_size
                    .number(key_tensor, "window_size_func", services)?;
                if size <= 0 {
                    return Err(invalid_argument!(
                        "Window size must be greater than zero, but got {size}."
                    ));
                }
                self.sizes.insert(key, size);
                size
            }
        };
        let group = self.groups.entry(key).or_default();
        group.push(element);
        Ok((i64::try_from(group.len()) == Ok(size)).then_some(key))
    }
}

impl DatasetIterator for WindowIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        loop {
            if let Some((_, iterator)) = &mut self.current {
                if let Some(element) = iterator.next(services)? {
                    return Ok(Some(element));
                }
                self.current = None;
            }
            let mut full = None;
            while full.is_none()
                && let Some(element) = next_of(&mut self.inner, services)?
            {
                services.cancel.check()?;
                full = self.add(element, services)?;
            }
            // At the end of the input, what is left of the groups follows.
            let rest = self.groups.keys().next().copied();
            match full.or(rest) {
                Some(key) => self.flush(key, services)?,
                None => return Ok(None),
            }
        }
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        let groups = std::mem::take(&mut self.groups);
        let mut groups: Vec<(i64, Vec<Components>)> = groups.into_iter().collect();
        let visited = state.list(&mut groups, |state, (key, group)| {
            state.int(key)?;
            state.elements(group)
        });
        self.groups = ordered_map(groups);
        visited?;
        let mut sizes: Vec<(i64, i64)> = self.sizes.iter().map(|(k, s)| (*k, *s)).collect();
        state.list(&mut sizes, |state, (key, size)| {
            state.int(key)?;
            state.int(size)
        })?;
        self.sizes = ordered_map(sizes);
        state.nested(&mut self.current)?;
        state.input(&mut self.inner, &self.source.input)
    }
}

struct GroupByReducer {
    input: Arc<Dataset>,
    key: CapturedFunction,
    init: CapturedFunction,
    reduce: CapturedFunction,
    finalize: CapturedFunction,
}

struct ReducerIterator {
    source: Arc<GroupByReducer>,
    inner: Input,
    states: BTreeMap<i64, Components>,
}

fn group_by_reducer(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let parts = ["key", "init", "reduce", "finalize"];
    let names = parts.map(|part| function_name(build, &format!("{part}_func")));
    let [key, init, reduce, finalize] = names;
    let names = [key?, init?, reduce?, finalize?];
    let n = |part: &str| n_of(build, &format!("T{part}_func_other_arguments"));
    let n_args = [n("key")?, n("init")?, n("reduce")?];
    make(build, move |ctx, _| {
        let key = 1 + n_args[0];
        let init = key + n_args[1];
        let (reduce, end) = (init + n_args[2], ctx.num_inputs());
        Ok(Arc::new(GroupByReducer {
            input: dataset(ctx, 0)?,
            key: function(ctx, &names[0], some(ctx, 1, key)?)?,
            init: function(ctx, &names[1], some(ctx, key, init)?)?,
            reduce: function(ctx, &names[2], some(ctx, init, reduce)?)?,
            finalize: function(ctx, &names[3], some(ctx, reduce, end)?)?,
        }))
    })
}

impl Source for GroupByReducer {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(ReducerIterator {
            inner: Some(self.input.iterator()?),
            source: self,
            states: BTreeMap::new(),
        }))
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.input.clone()]
    }
}

impl DatasetIterator for ReducerIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        let source = self.source.clone();
        while let Some(element) = next_of(&mut self.inner, services)? {
            services.cancel.check()?;
            let key = source.key.number(element.clone(), "key_func", services)?;
            let mut args = match self.states.remove(&key) {
                Some(state) => state,
                None => source.init.call(vec![Tensor::scalar(key)], services)?,
            };
            args.extend(element);
            let state = source.reduce.call(args, services)?;
            self.states.insert(key, state);
        }
        match self.states.pop_first() {
            Some((_, state)) => source.finalize.call(state, services).map(Some),
            None => Ok(None),
        }
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        let states = std::mem::take(&mut self.states);
        let mut states: Vec<(i64, Components)> = states.into_iter().collect();
        let visited = state.list(&mut states, |state, (key, value)| {
            state.int(key)?;
            state.element(value)
        });
        self.states = ordered_map(states);
        visited?;
        state.input(&mut self.inner, &self.source.input)
    }
}

struct Unique(Arc<Dataset>);

struct UniqueIterator {
    source: Arc<Unique>,
    inner: Input,
    seen: HashSet<Vec<u8>>,
}

fn unique(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    make(build, |ctx, _| {
        let input = dataset(ctx, 0)?;
        match input.dtypes[..] {
            [DType::Int32 | DType::Int64 | DType::String] => Ok(Arc::new(Unique(input))),
            [_] => Err(invalid_argument!(
                "UniqueDataset only supports inputs with a single `tf.int32`, `tf.int64`, or \
                 `tf.string` component."
            )),
            _ => Err(invalid_argument!(
                "UniqueDataset only supports inputs with a single component."
            )),
        }
    })
}

impl Source for Unique {
    fn iterator(self: Arc<Self>) -> Result<Box<dyn DatasetIterator>> {
        Ok(Box::new(UniqueIterator {
            inner: Some(self.0.iterator()?),
            source: self,
            seen: HashSet::new(),
        }))
    }

    fn cardinality(&self) -> i64 {
        UNKNOWN
    }

    fn inputs(&self) -> Vec<Arc<Dataset>> {
        vec![self.0.clone()]
    }
}

/// Returns bytes that equal tensors share, and others do not.
fn identity(t: &Tensor) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for &dim in t.shape().dims() {
        bytes.extend_from_slice(&(dim as u64).to_le_bytes());
    }
    match t.dtype() {
        DType::String => {
            for text in t.strings()? {
                bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
                bytes.extend_from_slice(text);
            }
        }
        _ => bytes.extend_from_slice(t.bytes()?),
    }
    Ok(bytes)
}

impl DatasetIterator for UniqueIterator {
    fn next(&mut self, services: &StepServices) -> Result<Option<Components>> {
        while let Some(element) = next_of(&mut self.inner, services)? {
            services.cancel.check()?;
            let identity = element.first().map(identity).transpose()?;
            if self.seen.insert(identity.unwrap_or_default()) {
                return Ok(Some(element));
            }
        }
        Ok(None)
    }

    fn state(&mut self, state: &mut State) -> Result<()> {
        let mut seen: Vec<Vec<u8>> = self.seen.drain().collect();
        let visited = state.list(&mut seen, State::bytes);
        self.seen = seen.into_iter().collect();
        visited?;
        state.input(&mut self.inner, &self.source.0)
    }
}
