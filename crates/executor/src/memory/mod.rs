//! Planned memory: the blocks that a step's nodes allocate have places in one arena.
//!
//! The first step with arguments of certain dtypes and shapes records which blocks the nodes of the root frame allocate, and
//! when they are freed. From then on steps with such arguments take an arena of the size that this order of
//! nodes needs. Nothing depends on the plan being right: nodes that run in another order, on several threads,
//! with other sizes or whose tensors live longer find their place in use and take memory from the heap
//! (`ferroflow_tensor::Arena`). A plan that steps do not follow is made again, a few times. Blocks that outlive the step
//! are on the heap, as are those of loops and functions, and those of devices.

mod offsets;
mod order;
mod plan;

pub use plan::{BlockUse, MemoryUse, SharedOutput};

use crate::trace::TracedTensor;
use ferroflow_base::Result;
use ferroflow_opdef::Value;
use ferroflow_program::{NodeIdx, Plan};
use ferroflow_tensor::{
    AllocationLog, Arena, BlockPlace, DType, Shape, Tensor, return_freed_memory,
};
use plan::{MemoryPlan, Record};
use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Most sets of shapes that an executor has plans for.
const MAX_CLASSES: usize = 16;
/// Most steps of a class that are recorded because those before failed.
const MAX_ATTEMPTS: u32 = 4;
/// Most plans for the same shapes, each made because steps were not as the one before says.
const MAX_PLANS: u32 = 3;
/// A class that is replaced after fewer steps was not worth its record.
const WORTHWHILE: u64 = 16;
/// A smaller arena stays with the step's state; others go to the cache of blocks, for all executors.
const SMALL: usize = 256 << 10;
/// A larger one, which the cache might not take, stays with its executor.
const LARGE: usize = 128 << 20;
/// Steps in which a large arena may be idle.
const MAX_IDLE: u32 = 16;
/// The most recorded steps whose memory, if they need much, goes back to the system at once: later steps have arenas.
const MAX_RETURNS: u32 = 4;
/// Much memory.
const MUCH: usize = 1 << 20;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The plans of an executor.
#[derive(Default)]
pub(crate) struct Memory {
    /// While no step needed an arena: arguments of fewer bytes need none either. Else zero.
    off_below: AtomicUsize,
    classes: Mutex<Classes>,
    /// Whether there is a spare arena.
    has_spare: AtomicBool,
    spare: Mutex<Spare>,
    n_returns: AtomicU32,
    /// Steps that had a plan or made one.
    now: AtomicU64,
}

/// A large arena that no step uses.
#[derive(Default)]
struct Spare {
    arena: Option<Arc<Arena>>,
    /// Steps since one used it.
    idle: u32,
}

#[derive(Default)]
struct Classes {
    known: Vec<Arc<Class>>,
    /// The shapes of the last lookup that found no class, and how often they were looked up in a row.
    missed: (Vec<(DType, Shape)>, u32),
    /// The lookups in a row that make a class replace another one.
    wanted: u32,
}

/// The steps whose arguments have certain dtypes and shapes.
pub(crate) struct Class {
    args: Vec<(DType, Shape)>,
    /// Whether a step records, or did.
    is_recorded: AtomicBool,
    attempts: AtomicU32,
    /// Plans before this one that steps did not follow.
    n_plans: u32,
    /// Whether steps do not follow the plan.
    is_stale: AtomicBool,
    /// When the last step ended.
    last: AtomicU64,
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

fn bytes_of(args: &[Tensor]) -> usize {
    args.iter().map(Tensor::byte_len).sum()
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
        let off_below = self.off_below.load(Ordering::Relaxed);
        match off_below > 0 && bytes_of(args) < off_below {
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
        if self.has_spare.load(Ordering::Relaxed) {
            self.age_spare();
        }
        let is_its = |class: &Option<Arc<Class>>| {
            let fresh = class
                .as_ref()
                .filter(|c| !c.is_stale.load(Ordering::Relaxed));
            fresh.is_some_and(|c| fits(&c.args, args))
        };
        if !is_its(&kept.class) {
            std::mem::swap(&mut kept.class, &mut kept.previous);
            if !is_its(&kept.class) {
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
        let bytes = memory.bytes;
        let kept_arena = kept.arena.take().filter(|arena| arena.len() >= bytes);
        let arena = match kept_arena {
            Some(arena) => arena,
            None => self.arena(bytes)?,
        };
        let class = class.clone();
        Some(StepMemory::Planned { class, arena })
    }

    fn arena(&self, bytes: usize) -> Option<Arc<Arena>> {
        let spare = match bytes >= LARGE {
            true => self.take_spare(bytes),
            false => None,
        };
        spare.or_else(|| Arena::new(bytes).ok())
    }

    /// The spare arena, unless it is much larger than a step needs.
    fn take_spare(&self, bytes: usize) -> Option<Arc<Arena>> {
        self.has_spare.store(false, Ordering::Relaxed);
        let arena = lock(&self.spare).arena.take();
        arena.filter(|arena| (bytes..=bytes.saturating_mul(2)).contains(&arena.len()))
    }

    /// Frees the spare arena if no step has used it for long.
    #[cold]
    fn age_spare(&self) {
        let mut spare = lock(&self.spare);
        spare.idle += 1;
        if spare.idle > MAX_IDLE {
            spare.arena = None;
            self.has_spare.store(false, Ordering::Relaxed);
        }
    }

    fn keep(&self, arena: Arc<Arena>) {
        let mut spare = lock(&self.spare);
        *spare = Spare {
            arena: Some(arena),
            idle: 0,
        };
        self.has_spare.store(true, Ordering::Relaxed);
    }

    /// Ends the memory of a step that succeeded, whose results are all that is left of its tensors.
    pub(crate) fn end(&self, plan: &Plan, memory: &StepMemory, kept: &mut Kept) {
        let now = self.now.fetch_add(1, Ordering::Relaxed);
        match memory {
            StepMemory::Recorded(recording) => {
                recording.class.last.store(now, Ordering::Relaxed);
                self.end_recorded(recording, plan);
            }
            StepMemory::Planned { class, arena } => {
                class.last.store(now, Ordering::Relaxed);
                if !class.end(arena) {
                    return;
                }
                match arena.len() {
                    ..=SMALL => kept.arena = Some(arena.clone()),
                    LARGE.. => self.keep(arena.clone()),
                    _ => {}
                }
            }
        }
    }

    fn end_recorded(&self, recording: &Recording, plan: &Plan) {
        let plan = recording.plan(plan);
        let (is_empty, bytes) = (plan.is_empty(), plan.bytes);
        // Only one step records a class.
        let _ = recording.class.plan.set(plan);
        if bytes >= MUCH && self.n_returns.fetch_add(1, Ordering::Relaxed) < MAX_RETURNS {
            return_freed_memory();
        }
        if is_empty {
            let off_below = lock(&self.classes).off_below();
            self.off_below.store(off_below, Ordering::Relaxed);
        } else {
            self.off_below.store(0, Ordering::Relaxed);
        }
    }

    /// What is known about each class, that of the last step first.
    pub(crate) fn report(&self, plan: &Plan) -> Vec<MemoryUse> {
        let name = |node: usize| {
            let info = &plan.info[node];
            (info.name.clone(), info.op.clone())
        };
        let mut known = lock(&self.classes).known.clone();
        known.sort_by_key(|c| Reverse(c.last.load(Ordering::Relaxed)));
        let planned = known.iter().filter_map(|c| Some((c, c.plan.get()?)));
        planned
            .map(|(c, plan)| plan.report(&c.args, name))
            .collect()
    }
}

impl Classes {
    /// The class of these arguments. Once there are many, a new one replaces the least recently used one if it is looked up
    /// several times in a row: the more often, the more classes were replaced too early. Shapes that change in each step
    /// are not worth recording.
    fn find(&mut self, args: &[Tensor]) -> Option<Arc<Class>> {
        let mut n_plans = 0;
        if let Some(at) = self.known.iter().position(|c| fits(&c.args, args)) {
            let class = &self.known[at];
            if !class.is_stale.load(Ordering::Relaxed) {
                return Some(class.clone());
            }
            n_plans = class.n_plans + 1;
            self.known.remove(at);
        }
        let of = |arg: &Tensor| (arg.dtype(), arg.shape().clone());
        if self.known.len() >= MAX_CLASSES {
            let (missed, times) = &mut self.missed;
            if !fits(missed, args) {
                *missed = args.iter().map(of).collect();
                *times = 0;
            }
            *times += 1;
            if *times < self.wanted.max(2) {
                return None;
            }
            self.replace();
        }
        let class = Arc::new(Class::new(args.iter().map(of).collect(), n_plans));
        self.known.push(class.clone());
        Some(class)
    }

    /// Forgets the least recently used class.
    fn replace(&mut self) {
        let last = |(_, c): &(usize, &Arc<Class>)| c.last.load(Ordering::Relaxed);
        let Some((at, _)) = self.known.iter().enumerate().min_by_key(last) else {
            return;
        };
        let class = self.known.swap_remove(at);
        let steps = class
            .plan
            .get()
            .map_or(0, |p| p.steps.load(Ordering::Relaxed));
        if steps < WORTHWHILE {
            self.wanted = self.wanted.max(2).saturating_mul(2);
        }
    }

    /// One more than the bytes of the largest arguments, if no class has a block for an arena; else zero.
    fn off_below(&self) -> usize {
        let is_empty = |c: &Arc<Class>| c.plan.get().is_some_and(MemoryPlan::is_empty);
        if !self.known.iter().all(is_empty) {
            return 0;
        }
        let bytes = |(dtype, shape): &(DType, Shape)| dtype.size() * shape.num_elements();
        let of_class = |c: &Arc<Class>| c.args.iter().map(bytes).sum::<usize>() + 1;
        self.known.iter().map(of_class).max().unwrap_or(0)
    }
}

impl Class {
    fn new(args: Vec<(DType, Shape)>, n_plans: u32) -> Class {
        let plan = OnceLock::new();
        if n_plans >= MAX_PLANS {
            // Its steps are all different.
            let _ = plan.set(MemoryPlan::default());
        }
        Class {
            args,
            is_recorded: AtomicBool::new(false),
            attempts: AtomicU32::new(0),
            n_plans,
            is_stale: AtomicBool::new(false),
            last: AtomicU64::new(0),
            plan,
        }
    }

    /// Ends the arena of a step, whose tensors are gone; returns whether it is free.
    fn end(&self, arena: &Arena) -> bool {
        let Some(plan) = self.plan.get() else {
            return false;
        };
        plan.steps.fetch_add(1, Ordering::Relaxed);
        let misses = arena.take_misses();
        plan.misses.fetch_add(misses, Ordering::Relaxed);
        let is_free = plan.disable_left(arena);
        if (misses > 0 || !is_free) && plan.is_useless() {
            self.is_stale.store(true, Ordering::Relaxed);
        }
        is_free
    }

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
            self.log.finish();
            self.class.is_recorded.store(false, Ordering::Relaxed);
        }
    }
}

impl StepMemory {
    /// Ends the memory of a step that failed, whose tensors are gone.
    pub(crate) fn abandon(&self) {
        if let StepMemory::Planned { class, arena } = self
            && let Some(plan) = class.plan.get()
        {
            plan.disable_left(arena);
        }
    }

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
