//! Plans for the shapes that a signature is fed with. Where the graph leaves sizes open, loops and groups of small ops
//! become machine code only if the compiler is told them; so a signature that is fed with the same shapes again and again
//! gets a plan of its own for these, if that has more such clusters.
//!
//! (TensorFlow: `compiler/jit/device_compiler.h`, which compiles a cluster for each set of shapes.)

use crate::session::Engine;
use ferroflow_program::{Body, Plan};
use ferroflow_tensor::{Shape, Tensor};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The most plans of a signature besides its general one.
const MAX_CLASSES: usize = 8;
/// Steps with the same shapes before a plan is made for them.
const STEPS: u32 = 16;
/// Shapes whose steps are counted.
const MAX_RECENT: usize = 8;
/// Steps with shapes that are not counted after which no plan is made any more.
const MAX_CHANGES: u32 = 1000;
/// Shapes for which a plan did not pay after which none is made any more.
const MAX_REFUSALS: usize = 4;
/// Nodes that a loop which becomes a cluster counts for.
const LOOP: usize = 50;

/// The plans of a signature for shapes of its feeds.
#[derive(Default)]
pub(crate) struct ShapeClasses {
    /// In the order in which they were made.
    classes: [OnceLock<Class>; MAX_CLASSES],
    recent: Mutex<Recent>,
    /// Whether no further plan is made.
    is_closed: AtomicBool,
}

struct Class {
    shapes: Vec<Shape>,
    /// `None` if a plan does not pay.
    engine: Option<Engine>,
}

/// The shapes of the last steps without a plan for them.
#[derive(Default)]
struct Recent {
    /// Shapes, and how many steps had them.
    counts: Vec<(Vec<Shape>, u32)>,
    changes: u32,
}

impl ShapeClasses {
    fn known(&self) -> impl Iterator<Item = &Class> {
        self.classes.iter().map_while(OnceLock::get)
    }

    /// Returns what runs steps with feeds of these shapes, if that is known: `Some(None)` stands for the general plan.
    pub(crate) fn find(&self, args: &[Tensor]) -> Option<Option<&Engine>> {
        let class = self.known().find(|c| has_shapes(args, &c.shapes))?;
        Some(class.engine.as_ref())
    }

    /// Counts a step without a plan for its shapes; returns whether one should be made now, which is true in one of
    /// several steps at the same time.
    pub(crate) fn is_due(&self, args: &[Tensor]) -> bool {
        if self.is_closed.load(Ordering::Relaxed) {
            return false;
        }
        let mut recent = self.recent();
        let mut counts = recent.counts.iter_mut();
        if let Some((_, steps)) = counts.find(|(shapes, _)| has_shapes(args, shapes)) {
            *steps += 1;
            return *steps == STEPS;
        }
        recent.changes += 1;
        if recent.changes > MAX_CHANGES {
            self.close();
        }
        if recent.counts.len() == MAX_RECENT {
            recent
                .counts
                .sort_unstable_by_key(|(_, steps)| u32::MAX - steps);
            recent.counts.pop();
        }
        let shapes = args.iter().map(|t| t.shape().clone()).collect();
        recent.counts.push((shapes, 1));
        false
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what runs steps with feeds of these shapes; `None` if a plan for them does not pay.
    pub(crate) fn add(&self, args: &[Tensor], engine: Option<Engine>) {
        let counts = &mut self.recent().counts;
        counts.retain(|(shapes, _)| !has_shapes(args, shapes));
        let shapes = args.iter().map(|t| t.shape().clone()).collect();
        let mut class = Class { shapes, engine };
        for place in &self.classes {
            match place.set(class) {
                Ok(()) => break,
                Err(back) => class = back,
            }
        }
        let refused = self.known().filter(|class| class.engine.is_none());
        if self.known().count() == MAX_CLASSES || refused.count() == MAX_REFUSALS {
            self.close();
        }
    }

    /// Makes no further plan.
    fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// Returns what runs the steps of each class.
    pub(crate) fn engines(&self) -> impl Iterator<Item = &Engine> {
        self.known().filter_map(|class| class.engine.as_ref())
    }
}

fn has_shapes(args: &[Tensor], shapes: &[Shape]) -> bool {
    args.len() == shapes.len() && args.iter().zip(shapes).all(|(t, s)| t.shape() == s)
}

/// Returns whether the plan of `special` is expected to be so much faster than the general one that it pays: it lacks a
/// quarter of the nodes, which have become clusters.
pub(crate) fn is_worthwhile(general: &Plan, special: &Body) -> bool {
    let is_loop = |op: &str| matches!(op, "While" | "StatelessWhile" | "XlaWhile" | "For");
    let loops = general.info.iter().filter(|info| is_loop(&info.op)).count();
    let loops = loops + general.frames.len();
    let nodes = special.nodes.iter().map(|node| &*node.info.op);
    let left = nodes.filter(|op| is_loop(op)).count();
    let left = left + special.frames.len();
    let size = |nodes: usize, loops: usize| nodes + LOOP * loops;
    let (before, after) = (
        size(general.nodes.len(), loops),
        size(special.nodes.len(), left),
    );
    4 * after <= 3 * before
}
