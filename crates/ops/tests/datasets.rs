//! Datasets without a session: threads, cancellation, and files.

use ferroflow_base::{Code, Result};
use ferroflow_opdef::{
    AttrValue, Attrs, Callable, FuncRef, Functions, PreparedOp, Resources, StepServices, Value,
};
use ferroflow_ops::registry;
use ferroflow_resources::dataset::{Dataset, DatasetIterator};
use ferroflow_sync::{CancelToken, Inline, Parallelism, Pool};
use ferroflow_tensor::{DType, PartialShape, Tensor};
use ferroflow_testkit::folder::Folder;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

type Body = dyn Fn(Vec<Tensor>, &StepServices) -> Result<Vec<Tensor>> + Send + Sync;

struct Function(Box<Body>);

impl Callable for Function {
    fn call(&self, args: Vec<Tensor>, services: &StepServices) -> Result<Vec<Tensor>> {
        (self.0)(args, services)
    }
}

/// Functions by name.
#[derive(Clone, Default)]
struct Library(Vec<(&'static str, Arc<dyn Callable>)>);

impl Functions for Library {
    fn get(&self, name: &str) -> Option<Arc<dyn Callable>> {
        let mut all = self.0.iter();
        Some(all.find(|(n, _)| *n == name)?.1.clone())
    }
}

impl Library {
    fn with(
        mut self,
        name: &'static str,
        body: impl Fn(Vec<Tensor>, &StepServices) -> Result<Vec<Tensor>> + Send + Sync + 'static,
    ) -> Library {
        self.0.push((name, Arc::new(Function(Box::new(body)))));
        self
    }
}

/// What a step provides.
struct World<'a> {
    library: &'a Library,
    par: &'a dyn Parallelism,
    cancel: CancelToken,
    resources: Resources,
}

impl<'a> World<'a> {
    fn new(library: &'a Library, par: &'a dyn Parallelism) -> World<'a> {
        World {
            library,
            par,
            cancel: CancelToken::new(),
            resources: Resources::default(),
        }
    }

    fn services(&self) -> StepServices<'_> {
        StepServices {
            par: self.par,
            cancel: &self.cancel,
            resources: &self.resources,
            functions: self.library,
            step_id: 0,
        }
    }

    fn run(&self, op: &str, attrs: Attrs, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        run(op, attrs, inputs, &self.services())
    }

    /// Makes a dataset of int64 scalars.
    fn make(&self, op: &str, attrs: Attrs, inputs: &[Tensor]) -> Tensor {
        self.run(op, attrs, inputs).expect(op).remove(0)
    }

    fn numbers(&self, n: i64) -> Tensor {
        self.make("RangeDataset", numbers(), &[0, n, 1].map(Tensor::scalar))
    }

    fn iterator(&self, dataset: &Tensor) -> Box<dyn DatasetIterator> {
        let dataset = Dataset::of(dataset).expect("a dataset");
        dataset.iterator().expect("an iterator")
    }

    fn all(&self, dataset: &Tensor) -> Vec<i64> {
        let mut iterator = self.iterator(dataset);
        let mut found = Vec::new();
        while let Some(element) = iterator.next(&self.services()).expect("an element") {
            found.push(element[0].to_scalar::<i64>().expect("a number"));
        }
        found
    }
}

fn run(op: &str, attrs: Attrs, inputs: &[Tensor], services: &StepServices) -> Result<Vec<Tensor>> {
    let dtypes: Vec<DType> = inputs.iter().map(Tensor::dtype).collect();
    let prepared = PreparedOp::new(registry(), op, &attrs, &dtypes)?;
    let mut values: Vec<Value> = inputs.iter().cloned().map(Value::Tensor).collect();
    let mut outputs = vec![Value::Empty; prepared.outputs().len()];
    prepared.run(&mut values, &mut outputs, services)?;
    Ok(outputs.into_iter().filter_map(Value::into_tensor).collect())
}

/// The attrs of elements that are int64 scalars.
fn numbers() -> Attrs {
    Attrs::default()
        .with("output_types", AttrValue::List(vec![DType::Int64.into()]))
        .with(
            "output_shapes",
            AttrValue::List(vec![AttrValue::Shape(PartialShape::scalar())]),
        )
}

fn function(name: &str) -> AttrValue {
    AttrValue::Func(FuncRef {
        name: name.to_string(),
        attrs: Attrs::default(),
    })
}

fn no_arguments(attrs: Attrs, names: &[&'static str]) -> Attrs {
    names.iter().fold(attrs, |attrs, &name| {
        attrs.with(name, AttrValue::List(Vec::new()))
    })
}

fn parallel_map(world: &World, input: Tensor, calls: i64) -> Tensor {
    let attrs = no_arguments(numbers().with("f", function("f")), &["Targuments"]);
    world.make(
        "ParallelMapDatasetV2",
        attrs,
        &[input, Tensor::scalar(calls)],
    )
}

#[test]
fn elements_stay_in_order_and_tasks_end_with_their_iterator() {
    for width in [1, 2, 4] {
        let n_calls = Arc::new(AtomicUsize::new(0));
        let counted = n_calls.clone();
        let library = Library::default().with("f", move |args, _| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(vec![Tensor::scalar(args[0].to_scalar::<i64>()? * 2)])
        });
        let pool = Pool::new(width);
        let world = World::new(&library, &pool);
        let endless = world.numbers(i64::MAX);
        let mapped = parallel_map(&world, endless, 3);
        for size in [0i64, 1, 5, -1] {
            let sizes = [mapped.clone(), Tensor::scalar(size)];
            let ahead = world.make("PrefetchDataset", numbers(), &sizes);
            let mut iterator = world.iterator(&ahead);
            for i in 0..100 {
                let element = iterator.next(&world.services()).expect("no error");
                let element = element.expect("no end");
                assert_eq!(element[0].to_scalar::<i64>().expect("a number"), 2 * i);
            }
        }
        drop((mapped, world));
        drop(pool);
        // Threads have ended, and no task is left that could call the function.
        let n = n_calls.load(Ordering::Relaxed);
        assert!((400..400 + 4 * 80).contains(&n), "{n} calls");
        drop(library);
        assert_eq!(Arc::strong_count(&n_calls), 1);
    }
}

#[test]
fn cancelling_a_step_ends_its_wait() {
    let n_begun = Arc::new(AtomicUsize::new(0));
    let counted = n_begun.clone();
    let library = Library::default().with("f", move |_, services| {
        counted.fetch_add(1, Ordering::Relaxed);
        loop {
            services.cancel.check()?;
            std::thread::yield_now();
        }
    });
    // The threads that run the calls vary.
    for width in [1, 3].repeat(20) {
        n_begun.store(0, Ordering::Relaxed);
        let n_calls = if width == 1 { 1 } else { 2 };
        let pool = Pool::new(width);
        let world = World::new(&library, &pool);
        let mapped = parallel_map(&world, world.numbers(9), 2);
        let inputs = [mapped, Tensor::scalar(2i64)];
        let ahead = world.make("PrefetchDataset", numbers(), &inputs);
        let mut iterator = world.iterator(&ahead);
        let token = world.cancel.clone();
        let begun = n_begun.clone();
        let caller = std::thread::spawn(move || {
            while begun.load(Ordering::Relaxed) < n_calls {
                std::thread::yield_now();
            }
            token.cancel();
        });
        let error = iterator.next(&world.services()).expect_err("cancelled");
        assert_eq!(error.code(), Code::Cancelled);
        caller.join().expect("no panic");
        // Dropping the iterator cancels the tasks; dropping the pool waits for them.
        drop(iterator);
        drop(world);
        drop(pool);
    }
}

/// Functions of saved datasets: all shards one after another, and shards of odd and even numbers.
fn shard_functions() -> Library {
    let first = Library::default().with("first", |mut args, _| Ok(vec![args.swap_remove(0)]));
    let flat = first.clone();
    first
        .with("parity", |args, _| {
            Ok(vec![Tensor::scalar(args[0].to_scalar::<i64>()? % 2)])
        })
        .with("read", move |args, services| {
            let attrs = no_arguments(numbers().with("f", function("first")), &["Targuments"]);
            let services = StepServices {
                functions: &flat,
                ..*services
            };
            run("FlatMapDataset", attrs, &args, &services)
        })
}

#[test]
fn saved_datasets_load() {
    let (library, folder) = (shard_functions(), Folder::new("saved_datasets"));
    let world = World::new(&library, &Inline);
    for (i, (compression, old)) in [("", true), ("GZIP", false), ("ZLIB", true)]
        .iter()
        .enumerate()
    {
        let path = Tensor::string(folder.path(&format!("saved{i}")));
        let compressed = |attrs: Attrs| attrs.with("compression", AttrValue::str(compression));
        let attrs = compressed(Attrs::default()).with("shard_func", function("parity"));
        let attrs = no_arguments(attrs, &["Tshard_func_args"]);
        let inputs = [world.numbers(7), path.clone()];
        if *old {
            world.run("SaveDataset", attrs, &inputs).expect("saves");
        } else {
            let attrs = numbers().iter().fold(attrs, |attrs, (name, value)| {
                attrs.with(name.clone(), value.clone())
            });
            let saved = world.make("SaveDatasetV2", attrs, &inputs);
            assert_eq!(world.all(&saved), [0, 1, 2, 3, 4, 5, 6]);
        }
        let attrs = compressed(numbers()).with("reader_func", function("read"));
        let attrs = no_arguments(attrs, &["Treader_func_args"]);
        let loaded = world.make("LoadDataset", attrs, &[path]);
        for _ in 0..2 {
            assert_eq!(world.all(&loaded), [0, 2, 4, 6, 1, 3, 5]);
        }
        assert_eq!(Dataset::of(&loaded).expect("a dataset").cardinality(), 7);
    }
    let inputs = [world.numbers(2), world.numbers(3)];
    let nested = world.make("SnapshotNestedDatasetReader", numbers(), &inputs);
    let attrs = no_arguments(numbers().with("f", function("first")), &["Targuments"]);
    let flat = world.make("FlatMapDataset", attrs, &[nested]);
    assert_eq!(world.all(&flat), [0, 1, 0, 1, 2]);
}

#[test]
fn snapshots_are_written_once() {
    let (library, folder) = (shard_functions(), Folder::new("snapshots"));
    let world = World::new(&library, &Inline);
    let path = Tensor::string(folder.path("snapshot"));
    let snapshot = |n: i64| {
        let attrs = numbers()
            .with("reader_func", function("read"))
            .with("shard_func", function("parity"));
        let attrs = no_arguments(attrs, &["Treader_func_args", "Tshard_func_args"]);
        world.make(
            "SnapshotDatasetV2",
            attrs,
            &[world.numbers(n), path.clone()],
        )
    };
    assert_eq!(world.all(&snapshot(4)), [0, 1, 2, 3]);
    assert_eq!(world.all(&snapshot(4)), [0, 2, 1, 3]);
    // Another dataset has a snapshot of its own.
    assert_eq!(world.all(&snapshot(3)), [0, 1, 2]);
}

#[test]
fn first_snapshots_have_modes() {
    let (library, folder) = (Library::default(), Folder::new("snapshots_v1"));
    let world = World::new(&library, &Inline);
    let made = |name: &str, mode: &str, more: &dyn Fn(Attrs) -> Attrs| {
        let attrs = more(numbers().with("mode", AttrValue::str(mode)));
        let inputs = [world.numbers(6), Tensor::string(folder.path(name))];
        world.run("SnapshotDataset", attrs, &inputs)
    };
    let plain = |attrs: Attrs| attrs;
    let all = |name: &str, mode: &str, more: &dyn Fn(Attrs) -> Attrs| {
        world.all(&made(name, mode, more).expect("a dataset")[0])
    };
    let first = |name: &str, mode: &str| {
        let dataset = made(name, mode, &plain).expect("a dataset");
        world.iterator(&dataset[0]).next(&world.services())
    };
    let missing = first("a", "read").expect_err("no snapshot");
    assert_eq!(missing.message(), "Metadata file does not exist.");
    assert_eq!(all("a", "passthrough", &plain), [0, 1, 2, 3, 4, 5]);
    assert!(!std::path::Path::new(&folder.path("a")).exists());
    for name in ["a", "b"] {
        let more = |attrs: Attrs| match name {
            "a" => attrs.with("compression", AttrValue::str("GZIP")),
            _ => attrs
                .with("shard_size_bytes", AttrValue::Int(16))
                .with("snapshot_name", AttrValue::str("run")),
        };
        for mode in ["auto", "auto", "read"] {
            assert_eq!(all(name, mode, &more), [0, 1, 2, 3, 4, 5], "{name} {mode}");
        }
    }
    let shuffled = all("b", "read", &|attrs| {
        attrs
            .with("shuffle_on_read", AttrValue::Bool(true))
            .with("seed", AttrValue::Int(5))
    });
    let mut pairs: Vec<&[i64]> = shuffled.chunks(2).collect();
    assert_ne!(shuffled, [0, 1, 2, 3, 4, 5]);
    pairs.sort();
    assert_eq!(pairs, [[0, 1], [2, 3], [4, 5]]);
    // An unfinished snapshot counts as being written, and what it lacks is not read.
    first("c", "write").expect("an element");
    assert_eq!(all("c", "auto", &plain), [0, 1, 2, 3, 4, 5]);
    for (name, value, error) in [
        (
            "mode",
            "x",
            "mode must be either 'auto', 'read', 'write', or 'passthrough'.",
        ),
        (
            "compression",
            "x",
            "compression must be either '', 'GZIP' or 'SNAPPY'.",
        ),
        (
            "snapshot_name",
            "../x",
            "snapshot_name must be the name of a folder, not '../x'",
        ),
    ] {
        let refused = made("d", "auto", &|attrs| {
            attrs.with(name, AttrValue::str(value))
        });
        assert_eq!(refused.expect_err(name).message(), error);
    }
}

#[test]
fn caches_in_files_are_complete_or_absent() {
    let (library, folder) = (Library::default(), Folder::new("dataset_cache"));
    let world = World::new(&library, &Inline);
    let path = Tensor::string(folder.path("cache"));
    let cached = |n: i64| world.make("CacheDataset", numbers(), &[world.numbers(n), path.clone()]);
    let mut first = world.iterator(&cached(3));
    first.next(&world.services()).expect("an element");
    let mut second = world.iterator(&cached(3));
    let error = second.next(&world.services()).expect_err("locked");
    assert_eq!(error.code(), Code::AlreadyExists);
    drop(first);
    assert_eq!(world.all(&cached(3)), [0, 1, 2]);
    // From here on the file is read, not the input.
    assert_eq!(world.all(&cached(9)), [0, 1, 2]);
}
