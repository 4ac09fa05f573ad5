//! Planned memory: the blocks that a step's nodes allocate have places in one arena.
//!
//! The first step with arguments of certain dtypes and shapes records which blocks the nodes of the root frame allocate, and
//! when they are freed. From then on steps with such arguments take an arena of the size that this order of
//! nodes needs. Nothing depends on the plan being right: nodes that run in another order, on several threads,
//! with other sizes or whose tensors live longer find their place in use and take memory from the heap
//! (`ferroflow_tensor::Arena`). Blocks that outlive the step are on the heap, as are those of loops and
//! functions, and those of devices.

mod offsets;
mod order;
mod plan;

pub use plan::{BlockUse, MemoryUse, SharedOutput};

use crate::trace::TracedTensor;
use ferroflow_base::Result;
use ferroflow_opdef::Value;
use ferroflow_program::{NodeIdx, Plan};
use ferroflow_tensor::{AllocationLog, Arena, BlockPlace, DType, Shape, Tensor};
use plan::{MemoryPlan, Record};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Most sets of shapes that an executor has plans for.
const MAX_CLASSES: usize = 16;
/// An executor whose first sets of shapes, this many, need no arena makes no more plans.
const EMPTY_CLASSES: usize = 4;
/// Most steps of a class that are recorded because those before failed.
const MAX_ATTEMPTS: u32 = 4;
/// A smaller arena stays with the step's state; others go to the cache of blocks, for all executors.
const SMALL: usize = 256 << 10;
/// A larger one, which the cache might not take, stays with its executor.
const LARGE: usize = 128 << 20;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The plans of an executor.
#[derive(Default)]
pub(crate) struct Memory {
    is_off: AtomicBool,
    classes: Mutex<Classes>,
    /// A large arena that no step uses.
    spare: Mutex<Option<Arc<Arena>>>,
}

#[derive(Default)]
struct Classes {
    /// The one that was looked up last comes first.
    known: Vec<Arc<Class>>,
    /// The shapes that were looked up last without being known.
    unknown: Vec<(DType, Shape)>,
}

/// The steps whose arguments have certain dtypes and shapes.
pub(crate) struct Class {
    args: Vec<(DType, Shape)>,
    /// Whether a step records, or did.
    is_recorded: AtomicBool,
    attempts: AtomicU32,
    plan: OnceLock<MemoryPlan>,
}

/// What a state keeps for its next step.
#[derive(Default)]
pub(crate) struct Kept {
    class: Option<Arc<Class>>,
    /// The one before: shapes often alternate.
    previous: Option<Arc<Class>>,
    arena: Option<Arc<Arena>>,
}

/// The memory of one step.
pub(crate) enum StepMemory {
    Recorded(Recording),
    Planned {
        class: Arc<Class>,
        arena: Arc<Arena>,
    },
}

/// A step that is recorded.
pub(crate) struct Recording {
    class: Arc<Class>,
    log: Arc<AllocationLog>,
    n_nodes: usize,
    is_concurrent: bool,
    notes: Mutex<Notes>,
}

/// What a recorded step knows besides the blocks.
#[derive(Default)]
struct Notes {
    readers: Vec<(usize, NodeIdx)>,
    shared: Vec<(NodeIdx, usize)>,
}

fn fits(class: &[(DType, Shape)], args: &[Tensor]) -> bool {
    let same = |((dtype, shape), arg): (&(DType, Shape), &Tensor)| {
        *dtype == arg.dtype() && shape == arg.shape()
    };
    class.len() == args.len() && class.iter().zip(args).all(same)
}

impl Memory {
    /// The memory of a step with these arguments; the heap's without. `is_concurrent` if nodes run on several threads.
    #[inline]
    pub(crate) fn begin(
        &self,
        plan: &Plan,
        kept: &mut Kept,
        args: &[Tensor],
        is_concurrent: bool,
    ) -> Option<StepMemory> {
        match self.is_off.load(Ordering::Relaxed) {
            true => None,
            false => self.begin_planned(plan, kept, args, is_concurrent),
        }
    }

    fn begin_planned(
        &self,
        plan: &Plan,
        kept: &mut Kept,
        args: &[Tensor],
        is_concurrent: bool,
    ) -> Option<StepMemory> {
        let fits = |class: &Option<Arc<Class>>| class.as_ref().is_some_and(|c| fits(&c.args, args));
        if !fits(&kept.class) {
            std::mem::swap(&mut kept.class, &mut kept.previous);
            if !fits(&kept.class) {
                kept.class = lock(&self.classes).find(args);
            }
        }
        let class = kept.class.as_ref()?;
        let Some(memory) = class.plan.get() else {
            return class.record(plan, is_concurrent);
        };
        if memory.is_empty() {
            return None;
        }
        let is_large_enough = |arena: &Arc<Arena>| arena.len() >= memory.bytes;
        let kept_arena = kept.arena.take().filter(is_large_enough);
        let arena = match kept_arena {
            Some(arena) => arena,
            None => self.arena(memory.bytes)?,
        };
        let class = class.clone();
        Some(StepMemory::Planned { class, arena })
    }

    fn arena(&self, bytes: usize) -> Option<Arc<Arena>> {
        let spare = match bytes >= LARGE {
            true => lock(&self.spare).take(),
            false => None,
        };
        let spare = spare.filter(|arena| arena.len() >= bytes);
        spare.or_else(|| Arena::new(bytes).ok())
    }

    /// Ends the memory of a step that succeeded, whose results are all that is left of its tensors.
    pub(crate) fn end(&self, plan: &Plan, memory: &StepMemory, kept: &mut Kept) {
        match memory {
            StepMemory::Recorded(recording) => {
                let plan = recording.plan(plan);
                let is_empty = plan.is_empty();
                // Only one step records a class.
                let _ = recording.class.plan.set(plan);
                if is_empty && lock(&self.classes).are_empty() {
                    self.is_off.store(true, Ordering::Relaxed);
                }
            }
            StepMemory::Planned { class, arena } => {
                let Some(plan) = class.plan.get() else { return };
                plan.steps.fetch_add(1, Ordering::Relaxed);
                plan.misses
                    .fetch_add(arena.take_misses(), Ordering::Relaxed);
                let left = arena.in_use();
                left.iter().for_each(|place| plan.disable(*place));
                if !left.is_empty() {
                    return;
                }
                match arena.len() {
                    ..=SMALL => kept.arena = Some(arena.clone()),
                    LARGE.. => *lock(&self.spare) = Some(arena.clone()),
                    _ => {}
                }
            }
        }
    }

    /// What is known about each class, the one that was looked up last first.
    pub(crate) fn report(&self, plan: &Plan) -> Vec<MemoryUse> {
        let name = |node: usize| {
            let info = &plan.info[node];
            (info.name.clone(), info.op.clone())
        };
        let known = lock(&self.classes).known.clone();
        let planned = known.iter().filter_map(|c| Some((c, c.plan.get()?)));
        planned
            .map(|(c, plan)| plan.report(&c.args, name))
            .collect()
    }
}

impl Classes {
    /// The class of these arguments. Once there are many, a new one replaces that which was not looked up for longest if
    /// it comes twice in a row: shapes that change in each step are not worth recording.
    fn find(&mut self, args: &[Tensor]) -> Option<Arc<Class>> {
        if let Some(at) = self.known.iter().position(|c| fits(&c.args, args)) {
            let class = self.known.remove(at);
            self.known.insert(0, class.clone());
            return Some(class);
        }
        let of = |arg: &Tensor| (arg.dtype(), arg.shape().clone());
        if self.known.len() >= MAX_CLASSES {
            if !fits(&self.unknown, args) {
                self.unknown.clear();
                self.unknown.extend(args.iter().map(of));
                return None;
            }
            self.known.pop();
        }
        let class = Arc::new(Class {
            args: args.iter().map(of).collect(),
            is_recorded: AtomicBool::new(false),
            attempts: AtomicU32::new(0),
            plan: OnceLock::new(),
        });
        self.known.insert(0, class.clone());
        Some(class)
    }

    /// Whether there are several classes, all without a block for an arena.
    fn are_empty(&self) -> bool {
        let is_empty = |c: &Arc<Class>| c.plan.get().is_some_and(MemoryPlan::is_empty);
        self.known.len() >= EMPTY_CLASSES && self.known.iter().all(is_empty)
    }
}

impl Class {
    /// Records a step, unless another one does.
    #[cold]
    fn record(self: &Arc<Self>, plan: &Plan, is_concurrent: bool) -> Option<StepMemory> {
        if self.is_recorded.swap(true, Ordering::Relaxed)
            || self.attempts.fetch_add(1, Ordering::Relaxed) >= MAX_ATTEMPTS
        {
            return None;
        }
        Some(StepMemory::Recorded(Recording {
            class: self.clone(),
            log: Arc::default(),
            n_nodes: plan.root().nodes().len(),
            is_concurrent,
            notes: Mutex::default(),
        }))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // After an error, another step may record.
        if self.class.plan.get().is_none() {
            self.class.is_recorded.store(false, Ordering::Relaxed);
        }
    }
}

impl StepMemory {
    /// Calls the kernel of a node. `tensors` returns those of values.
    #[inline]
    pub(crate) fn call(
        &self,
        node: NodeIdx,
        inputs: &mut [Value],
        outputs: &mut [Value],
        tensors: impl Fn(&[Value]) -> Vec<TracedTensor>,
        kernel: impl FnOnce(&mut [Value], &mut [Value]) -> Result<()>,
    ) -> Result<()> {
        match self {
            StepMemory::Planned { class, arena } => {
                let places = class
                    .plan
                    .get()
                    .map_or(&[][..], |plan| plan.places_of(node));
                match places {
                    [] => kernel(inputs, outputs),
                    places => arena.serve(places, || kernel(inputs, outputs)),
                }
            }
            // Those of other frames may run any number of times.
            StepMemory::Recorded(recording) if node.index() < recording.n_nodes => {
                let read = tensors(inputs);
                recording.note_read(node, &read);
                let log = &recording.log;
                log.watch(node.index() as u32, || kernel(inputs, outputs))?;
                recording.note_shared(node, &read, &tensors(outputs));
                Ok(())
            }
            StepMemory::Recorded(_) => kernel(inputs, outputs),
        }
    }
}

impl Recording {
    /// Remembers which blocks a node reads.
    fn note_read(&self, node: NodeIdx, inputs: &[TracedTensor]) {
        let blocks = inputs.iter().filter_map(|t| self.log.block_at(t.address));
        lock(&self.notes)
            .readers
            .extend(blocks.map(|block| (block, node)));
    }

    /// Remembers the outputs that are where inputs are or were.
    fn note_shared(&self, node: NodeIdx, inputs: &[TracedTensor], outputs: &[TracedTensor]) {
        let is_shared = |output: &&TracedTensor| {
            let holds = |input: &TracedTensor| {
                let range = input.address..input.address + input.bytes;
                range.contains(&output.address)
            };
            output.bytes >= BlockPlace::MIN_BYTES && inputs.iter().any(holds)
        };
        let shared = outputs.iter().filter(is_shared);
        lock(&self.notes)
            .shared
            .extend(shared.map(|output| (node, output.bytes)));
    }

    fn plan(&self, plan: &Plan) -> MemoryPlan {
        let Notes { readers, shared } = std::mem::take(&mut *lock(&self.notes));
        let record = Record {
            uses: self.log.finish(),
            readers,
            shared,
            is_concurrent: self.is_concurrent,
        };
        MemoryPlan::new(plan, record)
    }
}
